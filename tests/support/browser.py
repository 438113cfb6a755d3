"""Opens a page in headless Chromium, and returns what a person would see on the page."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--allow-file-access-from-files",
    "--enable-logging=stderr",
)

on_phone_and_desktop = pytest.mark.parametrize(
    ("width", "height", "dark"),
    [
        pytest.param(390, 844, False, id="phone-light"),
        pytest.param(390, 844, True, id="phone-dark", marks=pytest.mark.slow),
        pytest.param(1280, 900, False, id="desktop-light", marks=pytest.mark.slow),
        pytest.param(1280, 900, True, id="desktop-dark"),
    ],
)

# A browser's window has a minimum width, but a frame can be as narrow as a phone's screen.
FRAME = """<!doctype html><meta charset="utf-8"><body style="margin: 0">
<iframe src="{url}" width="{width}" height="{height}" style="border: 0"></iframe><pre></pre>
<script>
const drawn = mark => {{
  const box = mark.getBoundingClientRect();
  return box.width + box.height > 0;
}};
onload = () => {{
  const view = document.querySelector("iframe").contentWindow, page = view.document;
  if ("{choose}") page.querySelector("{choose}").click();
  const figures = [...page.querySelectorAll("svg[role=img]")].map(svg => {{
    const box = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")];
    const size = part => parseFloat(view.getComputedStyle(part).fontSize);
    // Powers are texts without a size of their own: the base and a smaller exponent have one each.
    const sizes = texts.map(text =>
      Math.max(...(text.children.length ? [...text.children].map(size) : [size(text)])));
    return {{
      label: svg.getAttribute("aria-label"),
      left: box.left,
      right: box.right,
      height: box.height,
      marks: [...svg.querySelectorAll("path, use")].filter(drawn).length,
      text: Math.min(...sizes) * box.width / svg.viewBox.baseVal.width,
      colour: view.getComputedStyle(texts[0]).fill,
    }};
  }});
  document.querySelector("pre").textContent = JSON.stringify({{
    figures,
    width: view.innerWidth,
    content: page.documentElement.scrollWidth,
    captions: Math.max(0, ...[...page.querySelectorAll("caption span")].map(
      caption => caption.getBoundingClientRect().right)),
    fonts: ["h1", "figure text", "th", "p"].map(
      name => page.querySelector(name)).filter(Boolean).map(
      part => view.getComputedStyle(part).fontFamily),
    dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
    paper: view.getComputedStyle(page.body).backgroundColor,
    cards: [...page.querySelectorAll("details[class]")].filter(drawn).map(card => ({{
      top: card.getBoundingClientRect().top + view.scrollY,
      scrolled: card.getBoundingClientRect().top,
      id: card.querySelector("[id]").id,
      open: card.open,
    }})),
  }});
}};
</script>"""


def open_page(
    page: Path,
    width: int,
    height: int,
    *,
    dark: bool = False,
    fragment: str = "",
    choose: str = "",
    scratch: Path,
) -> dict:
    """The visible content of the file `page` in a window of `width` by `height` pixels.

    The page is opened in a frame, whose file is written to the empty folder `scratch`, so that the
    page itself is not changed. `fragment` is the end of the page's address. If `choose` is a CSS
    selector, the element that the selector finds is clicked first. If no browser is installed, the
    test is skipped.

    The entry `figures` has, for each figure, the position, the height, the number of visible marks,
    the height of the smallest text and the colour of the first text. The entry `cards` has, for
    each visible foldable part, the top, the id and whether the part is open. The entries `width`
    and `content` are the widths of the window and of the content, and `captions` is the right end
    of the longest caption of a table. The entry `fonts` has the typefaces of headings, pictures,
    tables and text, `dark` says whether the theme is dark, `paper` is the colour of the background,
    and `console` has the lines that the page logged.
    """
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip(f"no browser found: none of {', '.join(NAMES)} is installed")
    frame = scratch / "frame.html"
    frame.write_text(
        FRAME.format(
            url=page.resolve().as_uri() + fragment, width=width, height=height, choose=choose
        )
    )
    theme = ["--force-dark-mode"] if dark else []
    window = [f"--user-data-dir={scratch / 'profile'}", "--window-size=1400,1000", "--dump-dom"]
    ran = subprocess.run(
        [browser, *FLAGS, *theme, *window, frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = re.search(r"<pre>(.+?)</pre>", ran.stdout, re.DOTALL)
    assert found, ran.stderr
    console = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(found[1]) | {"console": console}
