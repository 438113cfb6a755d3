"""Finds the links, the loaded files and the anchors of an HTML page."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch"}
CSS_URL = re.compile(r"(?:url\(|@import)\s*[\"']?([^\"')\s;]+)")


class Page(HTMLParser):
    """An HTML page.

    `links` are the addresses of links, `loads` the addresses of loaded files, and `names` the
    anchors.
    """

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = {"", "top"}
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.names |= {values[name] for name in ("id", "name") if name in values}
        self._style = tag == "style"
        self.loads += CSS_URL.findall(values.get("style", ""))
        self.loads += [part.split()[0] for part in values.get("srcset", "").split(",") if part]
        if "src" in values:
            self.loads.append(values["src"])
        if "href" in values:
            loaded = tag == "link" and LOADED_LINKS & set(values.get("rel", "").split())
            loaded = loaded or tag in ("use", "image")
            (self.loads if loaded else self.links).append(values["href"])

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loads += CSS_URL.findall(data)


def is_local(address: str) -> bool:
    """Whether an address is inside the site, or is a `data:` address."""
    parts = urlsplit(address)
    return parts.scheme in ("", "data") and not parts.netloc


def target(page: Path, address: str) -> tuple[Path, str]:
    """The file and the anchor of a local address that is used on `page`."""
    parts = urlsplit(address)
    return (page.parent / unquote(parts.path)).resolve() if parts.path else page, parts.fragment
