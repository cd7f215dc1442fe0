"""A check that a page of ours is whole, closed to the network and escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

_EMPTY = {"meta", "rect", "use", "path", "link", "img", "br", "input"}
_LOADING = {"src", "href", "srcset", "action", "data", "poster", "background", "xlink:href"}


class CheckedPage(HTMLParser):
    """A page read element by element: feed it, then `check` it.

    texts    the texts of cells, notes and facts, in order
    tables   for each table the classes of its heads and the number of cells of each row
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.policy = ""
        self.blocks: dict[str, list[str]] = {"style": [], "script": []}
        self.tables: list[tuple[list[str], list[int]]] = []
        self.texts: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Handle an element's begin, and refuse attributes that the policy refuses."""
        values = {name: value or "" for name, value in attrs}
        assert not any(name.startswith("on") or name == "style" for name in values), values
        for name, value in values.items():
            if name in _LOADING:
                assert value.startswith("#"), (tag, name, value)
                self.references.append(value.removeprefix("#"))
            self.references += re.findall(r"url\(#?([^)]*)\)", value)
        if "id" in values:
            self.ids.append(values["id"])
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        self.tags.add(tag)
        if tag == "table":
            self.tables.append(([], []))
        elif tag == "tr":
            self.tables[-1][1].append(0)
        elif tag == "th":
            assert values.get("scope") == "col"
            self.tables[-1][0].append(values["class"])
        elif tag == "td":
            self.tables[-1][1][-1] += 1
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Handle an element of SVG that ends where it begins."""
        self.handle_starttag(tag, attrs)
        if tag not in _EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Handle the end of an element, which must be the last that began."""
        if tag not in _EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Handle a text, or the text of a style or a script."""
        if self.open and self.open[-1] in self.blocks:
            self.blocks[self.open[-1]].append(data)
        elif data.strip():
            self.texts.append(data)

    def check(self) -> None:
        """Assert the rules of all pages."""
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))
        assert set(self.references) <= set(self.ids)
        assert self.policy.startswith("default-src 'none'; ")
        assert "unsafe" not in self.policy
        assert "http" not in self.policy
        for kind, blocks in self.blocks.items():
            (block,) = blocks
            digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
            assert f"{kind}-src 'sha256-{digest}'" in self.policy
        assert "@import" not in self.blocks["style"][0]
        assert "url(" not in self.blocks["style"][0]
        assert not self.tags & {"img", "iframe", "object", "embed", "link", "base", "form"}
        for heads, rows in self.tables:
            assert heads
            assert set(rows[1:]) == {len(heads)}


def checked(page: str) -> CheckedPage:
    """Read and check a page."""
    read = CheckedPage()
    read.feed(page)
    read.close()
    read.check()
    return read
