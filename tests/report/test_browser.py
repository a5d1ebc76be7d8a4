"""The page in a real Chromium: it opens from file:// without a network, shows the reports' numbers,
and runs nothing.
"""

from __future__ import annotations

import json
import shutil
import time

import pytest

from stages.common.config import read_params
from stages.common.files import read_json, write_text
from stages.common.schema import Experiment, Judge
from stages.judge.__main__ import judge_reports
from stages.report.page import gather, render
from tests.report.history import HOSTILE, write_experiment, write_search
from tests.synthetic import make_row, make_rows, write_run, write_side

pytestmark = pytest.mark.e2e  # starts a browser
SECTIONS = ("experiment", "model", "data", "benchmark", "train", "engine", "evaluate", "judge")
HUGE = HOSTILE + "\u202e" + "x" * 1_000_000


@pytest.fixture(scope="module")
def browser():
    from stages.common.doctor import missing

    if reason := missing().get("browser"):
        pytest.skip(reason)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1000,900",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(30)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run whose predictions, names and history are hostile, after 200 experiments."""
    run = write_run(tmp_path_factory.mktemp("page"))
    rows = make_rows(0.7, seed=2)
    rows[0] = make_row(0, False, prediction=HUGE)
    write_side(run / "reports/eval_val", rows, adapter="a" * 64)
    before = make_rows(0.0)
    # right before, so that the reply of a megabyte is among the samples
    before[0] = make_row(0, True)
    write_side(run / "reports/baseline", before)
    judge_reports(
        run,
        Judge("rules", "rules", 0.05, 0.01, 0.2),
        Experiment("synthetic", HOSTILE, "", "reports/baseline"),
    )
    write_search(run / "experiments", 199)
    write_experiment(
        run / "experiments",
        200,
        "hostile",
        "DISCARDED",
        parent="0001-start",
        hypothesis=HOSTILE,
        words={HOSTILE: HOSTILE},
    )
    return run


@pytest.fixture(scope="module")
def page(root):
    params = read_params(*SECTIONS)
    params.experiment.hypothesis = params.model.name = HOSTILE
    begun = time.monotonic()
    html = render(gather(root, params))
    write_text(root / "reports/index.html", html)
    return root / "reports/index.html", time.monotonic() - begun, len(html.encode())


@pytest.fixture
def opened(browser, page):
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(page[0].as_uri())
    return browser


def test_two_hundred_experiments_build_in_ten_seconds_open_in_two_and_weigh_less_than_five_megabytes(
    opened, page
):
    timing = opened.execute_script(
        "const t = performance.timing; return t.loadEventEnd - t.navigationStart"
    )
    assert page[1] < 10 and 0 < timing < 2000 and page[2] < 5_000_000, (page[1:], timing)


def test_it_asks_for_nothing_but_itself_and_says_nothing_in_the_console(opened, page):
    assert opened.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert asked == {page[0].as_uri()}


def test_a_persons_eye_sees_the_reports_own_numbers(opened, root):
    text = opened.find_element("tag name", "body").text.replace("\u00a0", " ")
    pooled = read_json(root / "reports/judge.json")["evidence"]["pooled"]
    assert "Accepted." in text and f"{100 * pooled['candidate']['accuracy']:.1f} %" in text
    assert f"{100 * pooled['difference']:+.1f} points" in text
    drawn = [svg for svg in opened.find_elements("css selector", "svg") if svg.is_displayed()]
    assert len(drawn) == 4 and all(
        svg.size["width"] > 300 and svg.size["height"] > 50 for svg in drawn
    )
    test = f"{100 * read_json(root / 'reports/eval_test/test.json')['overall']['accuracy']:.1f} %"
    details = opened.find_element("css selector", "#test + details")
    assert "last look by a person" in details.text and test not in details.text
    details.find_element("css selector", "summary").click()
    assert test in details.text.replace("\u00a0", " ")


def test_hostile_text_stays_text_in_a_browser(opened):
    assert (
        opened.execute_script(
            "return document.querySelectorAll('script, img, iframe, object, embed').length"
        )
        == 0
    )
    opened.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    text = opened.execute_script("return document.body.innerText")
    assert (
        text.count("</script><script>alert(1)</script>") >= 3
        and "{{7*7}}" in text
        and "\u202e" not in text
    )
    replies = [element.text for element in opened.find_elements("css selector", ".sample .text")]
    assert any("<script>alert(1)" in reply and len(reply) <= 500 for reply in replies), (
        "a reply of a megabyte is cut"
    )
    with pytest.raises(Exception, match=r"no such alert|NoAlert"):
        _ = opened.switch_to.alert.text


def test_no_table_is_cut_at_the_width_of_a_laptop(opened, browser):
    browser.set_window_size(1280, 900)
    opened.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    cut = (
        "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth"
        " + 1).map(e => e.innerText.slice(0, 80))"
    )
    boxes = "[...document.querySelectorAll('.scroll')].map(e => e.getBoundingClientRect())"
    wide = f"return {boxes}.filter(r => r.left < 0 || r.right > innerWidth)"
    try:
        assert opened.execute_script(cut) == [] and opened.execute_script(wide) == []
        assert opened.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        browser.set_window_size(1000, 900)


def test_a_mark_of_the_search_leads_to_its_card(opened):
    mark = opened.find_element("css selector", ".wide svg a[href='#exp-7'] path")
    opened.execute_script(
        "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", mark
    )
    assert opened.execute_script("return location.hash") == "#exp-7"


@pytest.mark.parametrize(
    ("width", "scheme", "media"),
    [
        (390, "light", "screen"),
        (390, "dark", "screen"),
        (1000, "dark", "screen"),
        (794, "light", "print"),
    ],
)
def test_it_fits_and_can_be_read_on_a_phone_in_the_dark_and_in_print(opened, width, scheme, media):
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    opened.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    try:
        opened.refresh()
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
        assert min(opened.execute_script(SMALLEST)) >= 9, "text of a chart is too small to read"
        ratios = opened.execute_script(CONTRAST)
        assert len(ratios) > 20 and min(ratios) >= 4.5, "WCAG AA for text"
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


SMALLEST = """
return [...document.querySelectorAll('svg text')].filter(t => t.getBoundingClientRect().width > 0)
  .map(t => parseFloat(getComputedStyle(t).fontSize) * t.getCTM().a || 99)"""
CONTRAST = """
function rgb(c) { const p = document.createElement('canvas').getContext('2d'); p.fillStyle = c; p.fillRect(0, 0, 1, 1);
  return [...p.getImageData(0, 0, 1, 1).data]; }
function lum(c) { const [r, g, b] = rgb(c).map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
  return .2126 * r + .7152 * g + .0722 * b; }
const back = lum(getComputedStyle(document.body).backgroundColor), seen = {};
const ratio = c => seen[c] ??= (l => (Math.max(l, back) + .05) / (Math.min(l, back) + .05))(lum(c));
const texts = document.querySelectorAll('p, summary, dd, td, th, figcaption, .good, .bad, .open, a, svg text');
return [...texts].filter(e => e.getClientRects().length)
  .map(e => ratio(e.matches('svg text') ? getComputedStyle(e).fill : getComputedStyle(e).color))"""
