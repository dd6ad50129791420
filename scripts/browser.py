"""Debian's Chromium, driven by selenium: what a page shows, and whether it complains."""

from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from checks import Failure
from dashboard_runs import until

LAPTOP, PHONE = (1280, 800), (360, 740)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb", "--hide-scrollbars")

# Whether the page, or a chart that can be seen, is still on its way.
BUSY = """
const seen = (p) => { const r = p.getBoundingClientRect(); return r.height > 0 && r.width > 0 && r.top < innerHeight && r.bottom > 0; };
return document.getElementById("main").textContent === "Loading…" || Boolean(document.querySelector("[aria-busy=true]")) ||
  [...document.querySelectorAll(".plot")].some((p) => seen(p) && !p.parentNode.querySelector(".said:not([hidden])") && (p.classList.contains("loading") || !("drawn" in p.dataset)));
"""

# Texts that are harder to read than WCAG AA allows: 4.5 to 1, or 3 to 1 for large ones.
PALE = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const parse = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1); const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255]; };
const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0.99) return c; } return [255, 255, 255, 1]; };
const pale = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !e.checkVisibility() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(e.tagName)) continue;
  const style = getComputedStyle(e);
  const svg = e.closest("svg");
  const front = parse(svg ? style.fill : style.color);
  if (front[3] === 0 || e.closest(":disabled")) continue;
  const [light, dark] = [luminance(front), luminance(behind(svg ? svg.parentElement : e))].sort((a, b) => b - a);
  const ratio = (light + 0.05) / (dark + 0.05);
  const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
  if (ratio < (large ? 3 : 4.5)) pale.push(`${walker.currentNode.textContent.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
}
return pale;
"""


class Browser:
    """One window."""

    def __init__(self, shots: Path, chromium: str, chromedriver: str):
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in FLAGS:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
        self.shots = shots
        shots.mkdir(parents=True, exist_ok=True)
        self.size(LAPTOP)

    def size(self, size: tuple[int, int]) -> None:
        width, height = size
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=size == PHONE)
        self.cdp("Emulation.setTouchEmulationEnabled", enabled=size == PHONE)

    def scheme(self, name: str) -> None:
        """What the system says: `light` or `dark`."""
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def cdp(self, command: str, **arguments) -> dict:
        return self.driver.execute_cdp_cmd(command, arguments)

    def open(self, url: str) -> None:
        """A page from its beginning: nothing of the last one is left."""
        self.driver.get("about:blank")
        self.driver.get(url)
        self.settle()

    def settle(self) -> None:
        until(lambda: not self.script(BUSY), f"the charts of {self.driver.current_url}")

    def script(self, code: str, *arguments):
        return self.driver.execute_script(code, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return [element for element in self.driver.find_elements(By.CSS_SELECTOR, selector) if element.is_displayed()]

    def one(self, selector: str, text: str = "") -> WebElement:
        """The first element that is seen, once it is there."""

        def look():
            try:
                return next((element for element in self.all(selector) if text in element.text), None)
            except StaleElementReferenceException:
                return None

        return until(look, f"`{selector}` with {text!r} at {self.driver.current_url}", 30)

    def read(self, selector: str, what):
        """Something of an element, also where the page replaces it meanwhile."""
        while True:
            try:
                return what(self.one(selector))
            except StaleElementReferenceException:
                pass

    def text(self, selector: str = "main") -> str:
        return self.read(selector, lambda element: element.text)

    def attribute(self, selector: str, name: str) -> str | None:
        return self.read(selector, lambda element: element.get_attribute(name))

    def click(self, selector: str) -> None:
        self.read(selector, lambda element: element.click())

    def has(self, *texts: str, selector: str = "main") -> None:
        """All these can be read, sooner or later."""
        for text in texts:
            until(lambda: text in self.text(selector), f"{text!r} at {self.driver.current_url}; there is {self.text(selector)[:400]!r}", 20)

    def label(self, selector: str) -> str:
        """What a chart says to who cannot see it."""
        return until(lambda: self.attribute(selector, "aria-label"), f"the text of the chart {selector}", 20)

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> str:
        """What has the focus, in a word: its label, its text, or its kind."""
        return self.script("const e = document.activeElement; return e.getAttribute('aria-label') || e.textContent.trim().slice(0, 60) || e.placeholder || e.tagName")

    def replace(self, selector: str, text: str) -> None:
        """Types into a field that may have something in it, and leaves the field."""
        field = self.one(selector)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text or Keys.DELETE, Keys.TAB)

    def shot(self, name: str) -> None:
        self.driver.save_screenshot(str(self.shots / f"{name}.png"))

    def fits(self) -> None:
        """The page is not wider than the window, and who reads it can read it."""
        wide = self.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if wide > 0:
            raise Failure(f"{self.driver.current_url} is {wide} pixels too wide")
        pale = self.script(PALE)
        if pale:
            raise Failure(f"{self.driver.current_url} has texts that are hard to read: {pale[:3]}")

    def quiet(self, *allowed: str) -> None:
        """The console has no error and no warning since the last look, but those with such a text."""
        said = [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        loud = [entry["message"] for entry in said if not any(text in entry["message"] for text in allowed)]
        if loud:
            raise Failure(f"the console says: {loud[0][:200]}")

    def close(self) -> None:
        self.driver.quit()
