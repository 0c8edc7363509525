"""The argument parser of all commands: a mistake is a ``UserError`` that names what was meant."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from vlplatform.errors import UserError, nearest


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises instead of printing its usage and leaving the process.

    Attributes:
        any_setting: Whether the command takes every setting as KEY=VALUE, so that one typed as an option is recognised.
        teaches: Makes the end of the help of the settings KEY=VALUE that stand beside ``--help``; none: it is fixed.
    """

    any_setting = False
    teaches: Callable[[Sequence[str]], str] | None = None
    _given: Sequence[str] = ()

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The parsed arguments; options may stand between positional ones.

        Raises:
            UserError: An unknown option (the nearest is named), or whatever else argparse refuses.
        """
        self._given = [word for word in arguments if word.startswith("~") or ("=" in word and word[:1] != "-")]
        parsed, unknown = self.parse_known_intermixed_args(arguments)
        if not unknown:
            return parsed
        name = unknown[0].partition("=")[0]
        if not name.startswith("-"):
            raise UserError(f"'{unknown[0]}' is one argument too many for {self.prog}: leave it out ({self._hint()}).")
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        takes_settings = any(action.dest == "overrides" for action in self._actions)
        written = "; settings are written KEY=VALUE without dashes" if takes_settings else ""
        if self.any_setting and (meant := self._setting(unknown[0], list(arguments))):
            raise UserError(f"{name} is not an option of {self.prog}: settings are written without dashes, {meant}.")
        raise UserError(f"{name} is not an option of {self.prog}: {nearest(name, known)}{written}.")

    def format_help(self) -> str:
        """The help, its end made by :attr:`teaches` where there is one."""
        if self.teaches is not None:
            taught = self.teaches(self._given)
            self.epilog = taught.replace("%", "%%") if "%(prog)" in taught else taught  # argparse fills in only then
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UserError` with argparse's own words."""
        raise UserError(f"{self.prog}: {message.rstrip('.')} ({self._hint()}).")

    def _setting(self, option: str, arguments: list[str]) -> str:
        """What was meant by a setting typed as an option (``--steps 5`` is ``trainer.steps=5``); empty if nothing."""
        from vlplatform.cli import compose  # only for a mistake: it reads all mechanisms and plugins

        name, equals, value = option.partition("=")
        if not equals:
            value = next(iter(arguments[arguments.index(option) + 1 :]), "")
            value = "VALUE" if not value or value.startswith("--") or "=" in value else value
        return compose.shown_as(compose.places(name.lstrip("-").replace("-", "_")), value)

    def _hint(self) -> str:
        return f"{self.prog} --help shows how it is called"


def one_of(what: str, valid: Iterable[str]) -> Callable[[str], str]:
    """A converter that takes the ``valid`` words alone and names the nearest one; ``what`` is what they are called."""
    words = tuple(valid)

    def convert(text: str) -> str:
        if text not in words:
            raise UserError(f"{what} {text} is unknown: {nearest(text, words)}.")
        return text

    return convert


def whole_number(what: str, least: int) -> Callable[[str], int]:
    """A converter for whole numbers from ``least``; ``what`` is the option they belong to."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise UserError(f"{what} {text} is not possible: give a whole number from {least}.")
        return number

    return convert
