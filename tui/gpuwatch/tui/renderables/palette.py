"""Colours by meaning. Nothing is told by colour alone: each has a letter, a word or a place of its own as well."""

from typing import Final

from rich.style import Style

PLAIN: Final = Style()
DIM: Final = Style(color="#8a94a6")
STRONG: Final = Style(bold=True)
GOOD: Final = Style(color="#3fb68b")
WARN: Final = Style(color="#e3b341", bold=True)
BAD: Final = Style(color="#ff7b72", bold=True)
ALARM: Final = Style(color="#ffffff", bgcolor="#a40e26", bold=True)
CHOSEN: Final = Style(reverse=True)
USED: Final = Style(color="#58a6ff")
RESERVED: Final = Style(color="#bc8cff")
ALLOCATED: Final = Style(color="#3fb68b")
PROMISED: Final = Style(color="#e3b341")
FOREIGN: Final = Style(color="#ff9b5e")
FREE: Final = Style(color="#4b5563")
