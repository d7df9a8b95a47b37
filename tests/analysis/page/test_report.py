"""The page in a real browser: nothing fetched, no errors, plots drawn, names inert, no sideways scrolling."""

import json
import re
import shutil

import pytest

from analysis.page.report import render, report

HOSTILE = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1">&amp;"\'🪜'
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]

# share of a canvas's pixels that are drawn on
INK = """() => [...document.querySelectorAll('canvas')].map((canvas) => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let drawn = 0;
  for (let k = 3; k < pixels.length; k += 4) drawn += pixels[k] > 0;
  return drawn / (pixels.length / 4);
})"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        own = driver.chromium.executable_path
        names = ("chromium", "chromium-browser", "google-chrome")
        found = next(filter(None, map(shutil.which, names)), None) or shutil.which(own)
        if not found:
            pytest.skip(f"no Chromium: neither {', '.join(names)} on the path nor {own}")
        with driver.chromium.launch(executable_path=found, args=QUIET) as launched:
            yield launched


@pytest.fixture
def look(browser, tmp_path):
    """Open a page's text; answers the page, on which .requests and .errors list what it did."""
    opened = []

    def at(text, width=1280, scheme="light"):
        file = tmp_path / f"{len(opened)}.html"
        file.write_text(text, "utf-8")
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        page.requests, page.errors = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("console", lambda message: page.errors.append(message.text))
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.goto(file.as_uri())
        page.wait_for_function("document.querySelector('h1') !== null")
        page.requests.remove(file.as_uri())
        return page

    yield at
    for page in opened:
        page.close()


@pytest.mark.parametrize(
    "stage", ["empty", "rungs", "gated", "frozen", "midrun", "finished", "alarm", "missed"]
)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_stage_draws_without_a_request_or_an_error(gathered, look, stage, width, scheme):
    data = gathered(stage)
    page = look(render(data), width, scheme)
    assert (page.requests, page.errors) == ([], [])
    assert page.inner_text("h1").replace("\xa0", " ") == data["headline"]["title"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    drawn = page.evaluate(INK)
    assert len(drawn) == {"empty": 0, "rungs": 5, "gated": 5}.get(stage, 6)
    assert all(share > 0.005 for share in drawn)
    for text in data["missing"]:
        assert text in page.inner_text("main")


def test_the_page_shows_the_gates(gathered, look):
    data = gathered("gated")
    page = look(render(data))
    first, second = page.locator("#gates tbody tr").all()
    row = data["gates"][0]
    for expected in (
        "d48",
        f"{row['median']:.4f}",
        f"{row['lo']:.4f} to {row['hi']:.4f}",
        "above",
        "d32, d40",
        f"{row['floor']:.4f}",
    ):
        assert expected in first.inner_text()
    assert "waiting" in second.inner_text() and "overruled" not in page.inner_text("#gates")
    data["gates"][0]["overruled"] = True
    assert "overruled by --no-gate" in look(render(data)).inner_text("#gates")
    assert look(render(gathered("rungs"))).locator("#gates").count() == 0


def test_the_page_says_what_the_forecast_was_and_where_the_target_landed(gathered, look):
    data = gathered("finished")
    text = look(render(data)).inner_text("main")
    for expected in (
        data["forecast"]["sha256"][:12],
        "weak",
        "normal",
        "1.56e13",
        "10.5M",
        "2.2\N{MULTIPLICATION SIGN} the top rung",
    ):
        assert expected in text
    for run in data["runs"]:
        assert run["run"] in text and f"{run['loss']:.4f}" in text
    assert data["ladder"]["hypothesis"]["question"] in text
    assert data["forecast"]["warnings"][0]["text"] in text


def test_a_forecast_without_a_band_and_a_lost_evaluation_still_draw(gathered, look):
    data = gathered("finished")
    forecast, target = data["forecast"], data["target"]
    for name in forecast["bands"]:
        if name not in ("progress", "tokens", "step", "median"):
            forecast["bands"][name] = [None] * len(forecast["bands"]["median"])
    forecast |= {"lo90": None, "hi90": None, "half_width_percent": None, "point_only": True}
    target |= {"lo90": None, "hi90": None, "inside": None}
    data["runs"][-1]["evals"]["loss"][5] = None
    page = look(render(data), 390)
    assert page.errors == [] and "no band" in page.inner_text("main")
    assert all(share > 0.005 for share in page.evaluate(INK))


def test_markup_in_any_text_stays_text(gathered, look):
    def poisoned(value):
        if isinstance(value, dict):
            return {key: poisoned(part) for key, part in value.items()}
        if isinstance(value, list):
            return [poisoned(part) for part in value]
        keep = (
            "target",
            "rung",
            "replicate",
            "finished",
            "normal",
            "watch",
            "precursor",
            "runaway",
            "warning",
        )
        return HOSTILE if isinstance(value, str) and value not in keep and not stamp(value) else value

    def stamp(text):  # times and hashes are made by us, and drawn by position
        return re.fullmatch(r"\d{4}-\d\d-\d\dT.*", text)

    page = look(render(poisoned(gathered("missed"))))
    assert (page.requests, page.errors) == ([], [])
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0
    assert HOSTILE in page.inner_text("h1")


def test_a_link_that_is_no_web_address_is_no_link(gathered, look):
    data = gathered("finished")
    data["ladder"]["hypothesis"]["links"] = ["javascript:window.hacked=1", "https://example.org/1"]
    hrefs = look(render(data)).eval_on_selector_all(
        "dl.plain a", "all => all.map((a) => a.getAttribute('href'))"
    )
    assert hrefs == ["https://example.org/1"]


def test_500_letters_without_a_space_do_not_widen_the_page(gathered, look):
    data = gathered("alarm")
    name = "x" * 500
    data["ladder"]["name"] = data["headline"]["title"] = data["missing"][0] = name
    data["events"][-1]["detail"] = data["runs"][0]["run"] = data["runs"][-1]["run"] = name
    page = look(render(data), width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.errors == []


def test_a_chart_can_be_read_with_the_keyboard(gathered, look):
    page = look(render(gathered("finished")))
    plots = page.locator("[role=img][tabindex='0']")
    assert plots.count() == 6
    residual = page.locator("figure", has_text="Distance from the forecast")
    residual.locator(".plot").focus()
    page.keyboard.press("End")
    assert "at 100 % of the run" in residual.locator(".readout").inner_text()
    page.keyboard.press("ArrowLeft")
    assert "at 95 % of the run" in residual.locator(".readout").inner_text()
    page.keyboard.press("Escape")
    assert "above the forecast" in residual.locator(".readout").inner_text()


def test_it_follows_the_width_of_the_window_and_prints_on_white(gathered, look):
    page = look(render(gathered("finished")), 1280, "dark")
    before = page.evaluate("document.querySelector('canvas').getBoundingClientRect().width")
    page.set_viewport_size({"width": 700, "height": 900})
    page.wait_for_function(
        "(w) => document.querySelector('canvas').getBoundingClientRect().width !== w", arg=before
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    ink = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()")
    assert ink == "#15171c"
    assert page.errors == []


def test_the_file_is_small_and_lands_in_the_store(stores, tmp_path):
    store = stores("finished")
    path = report(store)
    assert path == store.path("report.html") and store.exists("report.html")
    text = store.read("report.html").decode()
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data and len(text) - len(data[1]) < 150_000 and len(text) < 1_000_000
    assert json.loads(data[1])["ladder"]["name"] == "laptop"
    assert report(store, tmp_path / "deep" / "page.html") == str(tmp_path / "deep" / "page.html")
