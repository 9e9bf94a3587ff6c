"""The HTML page in a real browser, headless Chromium: charts draw, cells open their step, tables
sort, nothing is logged and nothing is requested. Skipped where Chromium or selenium is missing.

TPJITTER_SCREENSHOTS=DIR keeps a picture of each theme there.
"""
import base64
import json
import os
import pathlib
import shutil
import sys
import tempfile

import program

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    MISSING = None
except ImportError:
    MISSING = "python3-selenium is not installed"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if MISSING is None and not (CHROMIUM and DRIVER):
    MISSING = "chromium or chromium-driver is not installed"

MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class HtmlInBrowser(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="tpjitter-html-"))
        cls.run_directory = cls.shared / "run"
        helper = cls("setUp")
        result = helper.tpjitter(
            "run", helper.scenario(), "--out", cls.run_directory, "--quiet",
            "--set", "sampling.steps=240", "--set", "sampling.block_steps=40")
        assert result.returncode == 0, result.stderr
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                     "--window-size=1280,900", f"--user-data-dir={cls.shared / 'profile'}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        cls.browser = webdriver.Chrome(service=Service(DRIVER), options=options)

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        shutil.rmtree(cls.shared, ignore_errors=True)

    def page_of(self, *runs):
        page = self.directory / "page.html"
        result = self.tpjitter("report", *runs, "--format", "html", "-o", page)
        self.assertIn(result.returncode, (0, 3), result.stderr)
        return page

    def open(self, page, theme="light"):
        for kind in ("browser", "performance"):
            self.browser.get_log(kind)  # what an earlier page left
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": theme}]})
        self.browser.get(page.as_uri())
        self.assertEqual(self.script("return document.documentElement.dataset.ready"), "true")

    def script(self, text, *arguments):
        return self.browser.execute_script(text, *arguments)

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def assert_quiet(self, page):
        """Nothing was logged, and nothing but the page itself was asked for."""
        self.assertEqual(self.browser.get_log("browser"), [])
        for entry in self.browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                if not message["params"]["documentURL"].startswith(page.as_uri()):
                    continue  # the browser's own start page
                url = message["params"]["request"]["url"]
                self.assertTrue(url.split("#")[0] == page.as_uri() or url.startswith("data:"), url)

    def pixels_of_sets(self, canvas):
        """Pixels in the colour of each set, within the axes: the legend has these colours too."""
        return self.script("""
            const canvas = document.getElementById(arguments[0]);
            const chart = Chart.getChart(canvas), area = chart.chartArea;
            const scale = canvas.width / canvas.clientWidth;
            const [x, y, w, h] = [area.left, area.top, area.right - area.left,
                                  area.bottom - area.top].map((v) => Math.round(v * scale));
            const context = canvas.getContext('2d');
            const d = context.getImageData(x, y, w, h).data;
            const rgb = (css) => [1, 3, 5].map((at) => parseInt(css.slice(at, at + 2), 16));
            const counts = {};
            for (const set of chart.data.datasets) {
              const want = rgb(set.borderColor);
              let n = 0;
              for (let i = 0; i < d.length; i += 4)
                n += d[i + 3] > 200 && want.every((v, k) => Math.abs(d[i + k] - v) < 12);
              counts[set.label] = n;
            }
            return counts;""", canvas)

    def test_charts_draw_in_both_themes(self):
        page = self.page_of(self.run_directory)
        for theme in ("light", "dark"):
            self.open(page, theme)
            curves = self.pixels_of_sets("curve-canvas")
            self.assertEqual(len(curves), 3)
            for name, count in curves.items():
                self.assertGreater(count, 100, name)
            # A stage may have no share, but the largest fills much of its bar.
            self.assertGreater(max(self.pixels_of_sets("stage-canvas").values()), 1000)
            paper = self.script("return getComputedStyle(document.body).backgroundColor")
            self.assertEqual(paper == "rgb(255, 255, 255)", theme == "light")
            self.screenshot(theme)
            self.assert_quiet(page)

    def screenshot(self, name):
        folder = os.environ.get("TPJITTER_SCREENSHOTS")
        if not folder:
            return
        size = self.browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        shot = self.browser.execute_cdp_cmd("Page.captureScreenshot", {
            "captureBeyondViewport": True,
            "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}})
        (pathlib.Path(folder) / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def test_every_metric_and_every_choice_of_curves_has_its_table(self):
        page = self.page_of(self.run_directory)
        self.open(page)
        for of in self.find_all("#curve-of option"):
            of.click()
            for metric in self.find_all("#curve-metric option"):
                metric.click()
                rows = len(self.find_all("#curve-table tbody tr"))
                empty = self.find("#curve-empty").is_displayed()
                self.assertNotEqual(rows > 0, empty, metric.text)
                self.assertEqual(self.find("#curve-chart").is_displayed(), rows > 0)
        self.assert_quiet(page)

    def test_a_cell_of_the_heat_map_opens_its_step(self):
        page = self.page_of(self.run_directory)
        self.open(page)
        buttons = self.find_all("table.heat button")
        self.assertEqual(len(buttons), 3 * 2 * 6)  # paths, ranks, blocks of 40 steps
        wanted = buttons[-1]
        wanted.click()
        index = wanted.get_attribute("data-steps").split()[0]
        step = self.script(
            "return JSON.parse(document.getElementById('data').textContent)"
            ".runs[0].cases[arguments[0]].steps[arguments[1]]",
            int(wanted.get_attribute("data-case")), int(index))
        title = self.find("#line-title").text
        self.assertIn(f"launch {step['id'][0]}, repetition {step['id'][1]}, step {step['id'][2]}",
                      title)
        self.assertEqual(self.find("#line-from").text, wanted.get_attribute("aria-label"))
        self.assertGreater(len(self.find_all("#line svg rect")), 10)
        self.assertEqual(len(self.find_all("#line-table tbody tr")), 2)
        # Its block's other steps are one more click away.
        others = self.find_all("#line-block button")
        others[-1].click()
        self.assertEqual(others[-1].get_attribute("aria-pressed"), "true")
        self.assertIn(others[-1].text, self.find("#line-title").text)
        self.assert_quiet(page)

    def test_the_heat_map_works_without_a_mouse(self):
        page = self.page_of(self.run_directory)
        self.open(page)
        first = self.find("table.heat button")
        self.script("arguments[0].focus()", first)
        first.send_keys(Keys.ARROW_RIGHT)
        second = self.browser.switch_to.active_element
        self.assertNotEqual(first.get_attribute("aria-label"), second.get_attribute("aria-label"))
        second.send_keys(Keys.ENTER)
        self.assertEqual(self.find("#line-from").text, second.get_attribute("aria-label"))
        self.assertEqual(self.browser.switch_to.active_element.get_attribute("id"), "line-title")

    def test_the_time_line_has_the_stamps_of_the_record(self):
        import numpy
        page = self.page_of(self.run_directory)
        self.open(page)
        data = self.script("return JSON.parse(document.getElementById('data').textContent)")
        step = data["runs"][0]["cases"][0]["steps"][0]
        launch, repetition, number = step["id"]
        for rank in (0, 1):
            rows = numpy.load(self.run_directory / f"rank{rank}.phases.npy")
            row = rows[(rows["sequence"] > 0) & (rows["case_index"] == 0)
                       & (rows["launch"] == launch) & (rows["repetition"] == repetition)
                       & (rows["step"] == number)][0]
            shown = step["rebuilds"][0]["rows"][rank]
            self.assertEqual(shown[5] - shown[4],
                             row["dispatch_end_ns"] - row["dispatch_begin_ns"])
            self.assertEqual(shown[6] - shown[1], row["launch_begin_ns"] - row["accept_seen_ns"])

    def test_a_table_sorts_by_the_column_that_is_clicked(self):
        page = self.page_of(self.run_directory)
        self.open(page)
        head = self.find_all("#paths table.sortable thead tr:last-child th")[2]
        column = "#paths table.sortable tbody td:nth-child(3)"

        def values():
            return [float(cell.text) for cell in self.find_all(column)]
        for order in ("ascending", "descending"):
            head.find_element(By.TAG_NAME, "button").click()
            self.assertEqual(head.get_attribute("aria-sort"), order)
            self.assertEqual(values(), sorted(values(), reverse=order == "descending"))
        self.assertGreater(len(set(values())), 1)

    def test_names_are_text_and_never_markup(self):
        run = self.directory / "markup"
        shutil.copytree(self.run_directory, run)
        info = json.loads((run / "run.json").read_text())
        info["scenario_name"] = MARKUP
        info["cases"][0]["name"] = MARKUP
        info["command"] = ["tpjitter", MARKUP]
        info["environment"][MARKUP] = MARKUP
        info["warnings"] = [{"code": MARKUP, "text": MARKUP, "rank": None}]
        (run / "run.json").write_text(json.dumps(info))
        page = self.page_of(run)
        self.open(page)
        self.assertEqual(self.find_all("img"), [])
        self.assertEqual(self.browser.title, "tpjitter: " + MARKUP)
        self.assertIn(MARKUP, self.find("#paths table").text)
        self.assert_quiet(page)

    def test_several_runs_share_the_page(self):
        page = self.page_of(self.run_directory, self.run_directory)
        self.open(page)
        names = [cell.text for cell in self.find_all("#paths tbody td.name")]
        self.assertEqual(len(names), 6)
        self.assertEqual(len(set(names)), 6)
        self.assertEqual(len(self.find_all("#curve-table tbody tr")), 6)
        self.assert_quiet(page)

    def test_a_damaged_record_still_gives_a_page(self):
        run = self.directory / "damaged"
        shutil.copytree(self.run_directory, run)
        (run / "rank1.phases.npy").unlink()
        page = self.page_of(run)
        self.open(page)
        self.assertIn("rank1.phases.npy is missing", self.find("#warnings").text)
        self.assert_quiet(page)

    def test_it_is_one_file_below_5_mb_with_a_policy_that_forbids_requests(self):
        page = self.page_of(self.run_directory)
        self.assertLess(page.stat().st_size, 5_000_000)
        self.assertIn("default-src 'none'", page.read_text())
        self.open(page)
        blocked = self.script("""
            const done = arguments[0];
            return fetch('data:text/plain,x').then(() => 'asked', () => 'refused');""")
        self.assertEqual(blocked, "refused")

    def test_it_prints(self):
        page = self.page_of(self.run_directory)
        self.open(page, "dark")
        pdf = base64.b64decode(self.browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
        self.assertTrue(pdf.startswith(b"%PDF"))
        self.assertGreater(len(pdf), 20_000)
        colours = {}
        for media in ("screen", "print"):
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                "media": media, "features": [{"name": "prefers-color-scheme", "value": "dark"}]})
            colours[media] = self.script("""
                return [getComputedStyle(document.body).backgroundColor,
                        getComputedStyle(document.querySelector('.heat .h7')).backgroundColor]""")
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        self.assertEqual(colours["print"][0], "rgb(255, 255, 255)")
        self.assertEqual(colours["print"][1], "rgb(111, 34, 3)")  # that of the light theme
        self.assertNotEqual(colours["screen"], colours["print"])


if __name__ == "__main__":
    if MISSING:
        print("skipped:", MISSING)
        sys.exit(77)
    program.main()
