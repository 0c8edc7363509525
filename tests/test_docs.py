"""The documentation holds: tables, links, commands, and the example plugin."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from vlplatform.cli import compose
from vlplatform.cli.main import COMMANDS, parser_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_table_of_mechanisms_is_the_catalogue():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "mechanism_table.py", "--check"], check=False)
    assert done.returncode == 0, "run python scripts/mechanism_table.py"


def test_the_gallery_is_the_catalogue():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "gallery.py", "--check"], check=False)
    assert done.returncode == 0, "run python scripts/gallery.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def commands() -> list[str]:
    """The lines of all pages' code blocks that call ``vlp``."""
    lines = []
    for page in PAGES:
        for block in re.findall(r"```\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            lines += [line.split("   #")[0].strip() for line in block.splitlines()]
    return sorted({line for line in lines if line.startswith("vlp ") and "…" not in line})


@pytest.mark.parametrize("line", commands())
def test_commands_are_understood(line):
    for part in line.split("&&"):
        _, command, *rest = shlex.split(part)
        assert command in COMMANDS
        arguments = parser_of(command).parse_intermixed_args(rest)
        if command == "train" and "window_mean" not in line and "counting" not in line:
            compose.compose(arguments.overrides)


def test_the_readme_attention_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    code = "".join(block for block in blocks if "Window" not in block)
    made = (  # the converted checkpoint that the README loads
        "from vlp_captioning.models.mdsan import MdsanCaptioner, MdsanSettings\n"
        "from vlp_captioning.models import Shape\n"
        "from vlplatform.text import Vocabulary\n"
        "words = Vocabulary(tuple(f'w{i}' for i in range(25)), pad=1, bos=2, eos=3, unk=0)\n"
        "small = MdsanSettings(dim=16, heads=2, hidden=16, encoder_layers=1, decoder_layers=1)\n"
        "MdsanCaptioner(words, Shape(2048), {'name': 'mdsa'}, small).save('mdsan')\n"
        "from vlp_translation.models import TransformerSettings, Translator\n"
        "from vlp_translation.texts import Side, Texts\n"
        "from vlp_translation.texts.dictionary import of_words\n"
        "from vlp_translation.texts.whole import WholeWords\n"
        "from vlp_translation.texts.wording import Wording\n"
        "words = of_words([f'w{i}' for i in range(20)], 'words')\n"
        "sides = [Side(Wording(code, moses=False), WholeWords(), words) for code in ('de', 'en')]\n"
        "Translator(Texts(*sides), {'name': 'sa'}, TransformerSettings(preset='tiny')).save('translator')\n"
    )
    subprocess.run([sys.executable, "-c", made + code], check=True, cwd=tmp_path)


def test_the_readme_mechanism_trains(tmp_path):
    block = next(b for b in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S) if "Window" in b)
    code = block + (
        "\nimport torch\n"
        "module = MECHANISMS[0].build(dim=8, kernel=5)\n"
        "module(torch.rand(2, 8, 7, 9)).sum().backward()\n"
        "assert list(MECHANISMS[0].settings()) == ['out_dim', 'kernel']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_the_example_plugin_installs_and_runs(tmp_path):
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", target, ROOT / "docs" / "examples" / "vlp_counting"], check=True)
    environment = {**os.environ, "PYTHONPATH": str(target), "OMP_NUM_THREADS": "1"}
    run = [sys.executable, "-m", "vlplatform", "train", "task=counting", "attn=crisscross", "data=dots"]
    done = subprocess.run(
        [*run, "data.count=32", "trainer=smoke", "trainer.batch_size=16", "name=dots"],
        cwd=tmp_path,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    assert (tmp_path / "runs" / "dots" / "report.html").is_file()
    score = [sys.executable, "-m", "vlplatform", "eval", "runs/dots", "--json"]
    done = subprocess.run(score, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"accuracy"' in done.stdout
