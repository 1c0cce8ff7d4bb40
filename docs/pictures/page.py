"""Draws page.png and page-dark.png: the page of results/digits-demo, in headless Chromium.

python docs/pictures/page.py
"""

import shutil
import tempfile
from pathlib import Path

from palette import reduce_colours
from playwright.sync_api import sync_playwright

from sween.demo import RADII
from sween.report import write_report

FOLDER = Path(__file__).parent
WIDTH, HEIGHT = 1000, 2090


def main() -> None:
    with tempfile.TemporaryDirectory() as out, sync_playwright() as playwright:
        write_report([FOLDER.parents[1] / "results" / "digits-demo"], out, radii=RADII)
        chromium = shutil.which("chromium")
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        for scheme, name in (("light", "page.png"), ("dark", "page-dark.png")):
            size = {"width": WIDTH, "height": HEIGHT}
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto((Path(out) / "report.html").as_uri())
            top = page.locator("#results").bounding_box()["y"]
            area = {"x": 0, "y": top, "width": WIDTH, "height": HEIGHT}
            page.screenshot(path=FOLDER / name, full_page=True, clip=area)
            reduce_colours(FOLDER / name)
        browser.close()


if __name__ == "__main__":
    main()
