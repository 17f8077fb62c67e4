"""No dead link: in the Markdown files, every relative link and anchor leads somewhere; on the site, every internal one.

The site is built in `test_docs.py`, which calls `dead_on_site`. Addresses outside of the repository are not fetched.
"""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.repo import ROOT, tracked

MARKDOWN = [path for path in tracked() if path.suffix == ".md"]
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?^ {0,3}\1[`~]*[ \t]*$", re.M | re.S)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^ {0,3}\[[^\]]+\]:\s*(\S+)", re.M)
HTML_LINK = re.compile(r"""<(?:a|img|source)\b[^>]*?\s(?:href|src|srcset)=["']([^"']+)["']""")
HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.M)


def links(text: str) -> list[str]:
    """Targets of the links and pictures of a Markdown text, without those in code."""
    prose = CODE.sub("", FENCE.sub("", text))
    return [a or b for a, b in LINK.findall(prose)] + HTML_LINK.findall(prose)


@cache
def anchors(path: Path) -> frozenset[str]:
    """Anchors of a Markdown file, as GitHub and the site make them of headings; a heading that occurs again gets a number."""
    found: list[str] = re.findall(r"""<a (?:id|name)=["']([^"']+)["']""", path.read_text())
    for heading in HEADING.findall(FENCE.sub("", path.read_text())):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{sum(f == slug for f in found)}")
    return frozenset(found)


def dead(path: Path, text: str) -> list[str]:
    """The links of a Markdown file that lead nowhere, or out of the repository."""
    wrong = []
    for link in links(text):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        inside = target.is_relative_to(ROOT) or not path.is_relative_to(ROOT)
        anchor = unquote(parts.fragment) if target.suffix == ".md" else ""
        if not (inside and target.exists()) or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


def test_links_lead_somewhere() -> None:
    found = {path.relative_to(ROOT).as_posix(): dead(path, path.read_text()) for path in MARKDOWN}
    assert {name: links for name, links in found.items() if links} == {}


class Page(HTMLParser):
    """The links of a page of the site, and the anchors on it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {value for key, value in attrs if key in ("id", "name") and value}
        key = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "srcset"}.get(tag)
        if key and (link := given.get(key)):
            self.links.append(link)


def dead_on_site(site: Path) -> list[str]:
    """`PAGE: LINK` for each link within the built site that leads nowhere."""
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            lost = parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids
            if not target.exists() or lost:
                wrong.append(f"{path.relative_to(site)}: {link}")
    return wrong
