"""Penn Treebank tokenisation without Java, after the behaviour of Stanford's PTBTokenizer 3.4.1.

Like that tokeniser's grammar this is a list of patterns of which the longest match wins, what a pattern wants to see
behind its token included, and of equally long ones the first. The list was written from the tool's answers to some two
million probes; it is no translation of its source. Where both are known to differ: `tests/metrics/test_ptb.py`.
"""

from __future__ import annotations

import re
import unicodedata

# Abbreviations that keep their full stop. The first group must not be all lower case ("mass." ends a sentence).
_CAPITALISED = "Az|Ark|Del|Ill|La|Mass|Miss|Ore|Pa|Tex|Wash"
_ABBREVIATIONS = (
    "ph\\.d|ed\\.d|adj|adm|adv|ala|alex|al|apr|ariz|assn|asst|attys?|aug|ave|bancorp|bhd|bldg|blvd|brig|bros|calif|"
    "capt|cf|cie|cmdr|"
    "colo|col|comdr|conn|corp|cos?|cpl|ct|dak|dec|dept|det|drs?|elec|ens|esq|est|etc|ext|feb|fla|fri|ft|ga|gen|govs?|"
    "hon|inc|ind|insp|intl|invt|jan|jos|jr|jul|jun|kans?|ky|lieut|ltd|lt|maj|mar|md|messrs|mfg|mich|minn|mlle|mme|mont|"
    "mon|mo|mrs?|msgr|ms|mtg|mt|natl|neb|nev|nov|oct|okla|penn|pfc|ph|plc|pp?t[ey]s?|pres|profs?|pvt|rd|reps?|rev|rt|"
    "sens?|sept?|seq|sfc|sgt|spc|sq|sr|ste?|supts?|sys|tel|tenn|thurs?|thu|tues?|univ|va|vs|vt|wed|wisc?|wm|wyo"
)
_FILES = (
    "bat|bmp|c|cgi|class|cpp|dll|docx?|exe|gif|gz|h|html?|jar|java|jpe?g|mov|mp3|pdf|php|pl|png|ppt|ps|py|sql|tar|txt|wav|"
    "x|xml|zip"
)
_BEFORE_NUMBERS = "art|ca|figs?|nos?|op|pp|prop"

_STARTERS = (
    "about|after|an?|as|at|but|he|her|here|however|if|in|it|last|many|more|mr\\.|ms\\.|now|once|one|other|our|she|since|so|"
    "some|such|that|the|their|then|there|these|they|this|we|what|when|while|yet|you"
)

_L = r"(?:[^\W\d_²³¹¼-¾⁰-₟⅐-↏][\u0300-\u036f\xad]*)"  # a letter with its accents
_LD = rf"(?:{_L}|\d)"
_APO, _ANY_APO = "['’]", "['’`]"
_PART = rf"(?:[dDoOlL]['’`](?={_LD}{{2}}))?{_LD}+"
_ABBR = rf"(?:(?i:{_ABBREVIATIONS})|(?:(?!(?-i:[a-z]))(?i:{_CAPITALISED})))"
_URL = r"[^\s\"<>|(){}]"
_ATTRIBUTE = r"[A-Za-z][\w:.-]*(?:[ \t]*=[ \t]*(?:\"[^\"<>]*\"|'[^'<>]*'))?"

# (token, what must follow it); what must follow counts for the length of the match, as in the original.
_PATTERNS: tuple[tuple[str, str], ...] = (
    (rf"</?[A-Za-z][A-Za-z0-9:._-]*(?:[ \t]+{_ATTRIBUTE})*[ \t]*/?>", ""),
    (r"<[!?][A-Za-z-][^>]*>", ""),
    (rf"{_L}{_LD}*(?:[.!?]{_L}{_LD}*)*", ""),  # dog, end.Begin
    (rf"{_PART}(?:[-_\u058a\u2010\u2011]{_PART})*", ""),  # state-of-the-art, 2-year-old, o'clock
    (r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}(?:/[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}){1,2}", ""),  # and/or
    (r"[A-Z]+(?:(?:&amp;|[+&])[A-Z]+)+", ""),  # R&B
    (r"https?://" + _URL + r"*[^\s\"<>|.!?(){},-]", ""),
    (r"www\.(?:[^\s\"`'<>|.!?(){},/-]+\.)+[A-Za-z]{2,4}(?:/" + _URL + r"*[^\s\"<>|.!?(){},-])?", ""),
    (r"[CcFf]\#|[Cc]\+\+|(?i:non-u\.s\.)", ""),
    (r"<?[A-Za-z0-9][^\s\"<>|(){}@]*@(?:[^\s\"<>|(){}.@,]+\.)*[^\s\"<>|(){}.@]+>?", ""),
    (r"[@][A-Za-z_]\w*|#[^\W\d_]+", ""),
    (rf"(?:[A-HJ-XZn]{_ANY_APO}{_L}{{2}}{_L}*|{_L}+[aeiouyAEIOUY]{_ANY_APO}[aeiouA-Z]{_L}*)", ""),
    (rf"{_APO}[nN]{_APO}|[lLdDjJ]{_APO}|[oO][lL]{_APO}|(?:[sS]ometh|[dD]unk)in{_APO}(?![A-Za-z])", ""),
    (r"'(?i:tis|twas)(?![A-Za-z0-9])", ""),
    (rf"{_APO}(?i:em|till?|cause)|{_APO}[2-9]0s", ""),
    (rf"(?i:c{_APO}mon|e{_APO}er|s{_APO}mores|ev{_APO}ry|li{_APO}l|nat{_APO}l|o{_APO}o|nor{_APO}easter)", ""),
    (rf"{_APO}[nN]", "[^A-Za-z]"),
    (rf"[yY]{_APO}", "[A-Za-z]"),
    (rf"{_APO}(?:[msdMSD]|re|ve|ll|RE|VE|LL|Re|Ve|Ll)", "[^A-Za-z]"),
    ("’(?:[msdMSD]|re|ve|ll)", ""),
    (rf"{_LD}+", rf"{_APO}(?:[msdMSD]|re|ve|ll|RE|VE|LL)[^A-Za-z]"),
    (rf"[A-Za-z]+?(?=[nN]{_ANY_APO}[tT])", rf"[nN]{_ANY_APO}[tT]"),
    (rf"[nN]{_ANY_APO}[tT]", "[^A-Za-z]"),
    (r"(?:[A-Za-z]\.)*[A-Za-z]\.", ""),  # a.m., U.S., the B. in a name …
    (r"[A-Za-z]", rf"\.\s+(?:<[A-Za-z/]|(?=[A-Z])(?i:{_STARTERS})\s)"),  # … but not where a sentence ends
    (rf"{_ABBR}\.", ""),
    (rf"(?i:{_BEFORE_NUMBERS})\.", r"\s*\d"),
    (rf"(?:(?:[A-Za-z]\.)+|(?!(?i:etc)){_ABBR}\.)(?:-{_LD}+)+", ""),  # U.S.-based
    (r"\(\d{2,3}\)[ \xa0]?\d{3,4}[- \xa0]?\d{3,5}", ""),  # telephone numbers
    (r"(?:\+\+?)?(?:\d{2,4}[- \xa0])?\d{2,4}[- \xa0]\d{3,4}[- \xa0]?\d{3,5}", ""),
    (r"(?:\+\+?)?(?:\d{2,4}\.)?\d{2,4}\.\d{3,4}\.\d{3,5}", ""),
    (r"\d{1,2}[-/]\d{1,2}[-/]\d{2,4}", ""),
    (r"(?:\d{1,4}[- \xa0])?\d{1,4}[/⁄]\d{1,4}", ""),  # 2 1/2
    (r"[-+]?(?:\d*(?:[.,:]\d+)+|\d+)", ""),
    (r"\d+(?:[.,]\d+)+-[A-Za-z]+", ""),  # 3.5-inch
    (r"[A-Z]*\$", ""),
    (rf"{_APO}\d\d", r"[^\w\"”.,:'’-]"),
    (r"[<>]?[:;=][-o*']?[()DPdpO\\{@|\[\]]", "[^A-Za-z0-9]"),
    ("[:=]3", r"\s"),
    (r"\([-^x=~<>'][_.]?[-^x=~<>']\)|[-^x=~<>']_[-^x=~<>']", ""),
    (rf"[A-Za-z0-9]+\.(?i:{_FILES})(?![A-Za-z0-9])", ""),
    (r"&(?:amp|AMP|lt|LT|gt|GT|quot|QUOT|apos|nbsp|NBSP|MD|mdash|ndash|HT);|&#\d+;", ""),
    (r"-{2,}|[—–―]", ""),
    (r"\.\.\.", ""),
    (r"[?!]+|<<|>>|@@|\*+|_+|\#+", ""),
    (r"''|``|\"|[“”«»]", ""),
)

_RULES = tuple(re.compile(f"({token}){behind}") for token, behind in _PATTERNS)
_PLAIN = re.compile(  # nearly every token of a caption, and no rule finds a longer one there
    rf"[A-Za-z]+(?=\s)|(?!(?i:{_ABBREVIATIONS}|{_CAPITALISED}|{_BEFORE_NUMBERS})\.)[A-Za-z]{{2,}}(?=[.,]\s)|[.,](?=\s)"
)
_SPLIT = {"cannot": 3, "gonna": 3, "gotta": 3, "lemme": 3, "gimme": 3, "wanna": 3, "'tis": 2, "'twas": 2}
_CLITIC = re.compile(r"['’](?i:[msd]|re|ve|ll)[^A-Za-z]")
_SPACES = re.compile(r"[\s\u200b]+")
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
_WRITTEN = {
    "¢": "cents",
    "½": "1/2",
    "¼": "1/4",
    "¾": "3/4",
    "⅓": "1/3",
    "⅔": "2/3",
    "…": "...",
    "£": "#",
    "&nbsp;": "",
}
_WRITTEN |= dict.fromkeys(("€", "¤", "₢", "₮"), "$") | dict.fromkeys(('"', "”", "»", "&quot;"), "''")
_WRITTEN |= (
    dict.fromkeys(("“", "«"), "``") | dict.fromkeys(("‘", "‹", "‛"), "`") | dict.fromkeys(("’", "›", "&apos;"), "'")
)
_WRITTEN |= dict.fromkeys(("—", "–", "―", "&mdash;", "&ndash;"), "--") | {"&amp;": "&", "&lt;": "<", "&gt;": ">"}


def tokens(caption: str, following: str = "") -> list[str]:
    """The lower-case tokens of one line, punctuation included.

    Args:
        caption: One line.
        following: The line after it: a letter and a full stop at the end of a line are one token or two depending on
            how the next line begins (the original reads across lines too).
    """
    text, place, found = f"{caption}\n{following}", 0, []
    while True:
        if blank := _SPACES.match(text, place):
            place = blank.end()
        if place >= len(caption):
            return [word for word in found if word]
        word = _longest(text, place)
        place += len(word)
        lower = word.lower()
        if (cut := _SPLIT.get(lower)) and not _CLITIC.match(text, place):
            found += [lower[:cut], lower[cut:]]
        else:
            found.append(_written(lower))


def _longest(text: str, place: int) -> str:
    if plain := _PLAIN.match(text, place):
        return plain[0]
    best, length = text[place], 0
    for rule in _RULES:
        if (match := rule.match(text, place)) and match.end() - place > length:
            best, length = match[1], match.end() - place
    return best


def _written(word: str) -> str:
    """How a token is written: brackets by name, quotes and dashes in ASCII, unknown symbols not at all."""
    if word in _WRITTEN:
        return _WRITTEN[word]
    if len(word) == 1 and not word.isascii():
        return word if _known(word) else ""
    if re.fullmatch("-{2,4}", word):
        return "--"
    if re.fullmatch("’(?:[smd]|re|ve|ll)|n’t", word):
        return word.replace("’", "'")
    if word in _BRACKETS:
        return _BRACKETS[word]
    word = word.replace(" ", "\xa0").replace("\xad", "").replace("&amp;", "&")
    if "(" in word or ")" in word:
        word = word.replace("(", "-lrb-").replace(")", "-rrb-")
    return word


def _known(symbol: str) -> bool:
    kind = unicodedata.category(symbol)
    letter = kind[0] == "L" or kind == "Nd"
    return letter or (kind[0] in "MNPS" and kind != "Nl" and symbol < "\u2c00" and symbol not in "⁃‒‑‐")
