//! A headless browser, controlled with plain `WebDriver` (W3C) requests. A client library would be larger
//! than this code.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::wait_for;

/// The time limit of a script. axe-core inspects every element of a page. On a busy machine this takes longer
/// than the 30 seconds that `WebDriver` allows by default.
const SCRIPT_TIMEOUT: Duration = Duration::from_mins(5);

/// A script that returns the width and the height of the page's content in pixels. A picture contains at most the
/// first 6,500 pixels of the height.
const PAGE_SIZE: &str = "
  const ends = [...document.body.children].map((one) => one.getBoundingClientRect().bottom + scrollY);
  return [document.documentElement.clientWidth, Math.min(6500, Math.max(...ends))];";

/// A browser with a temporary profile. Dropping it closes the browser.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: TempDir,
}

impl Browser {
    /// Starts a browser.
    ///
    /// # Panics
    ///
    /// If Chromium or its driver is missing. A test that calls this function must be ignored.
    pub fn start() -> Self {
        Self::try_start().unwrap_or_else(|reason| panic!("no browser can be started: {reason}"))
    }

    fn try_start() -> Result<Self, String> {
        let profile = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("chromedriver (Debian's chromium-driver): {error}"))?;
        let stdout = driver.stdout.take().ok_or("chromedriver has no standard output")?;
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let port = port.ok_or("chromedriver did not print its port")?;
        let mut browser = Self { driver, port, session: String::new(), profile };
        let folder = format!("--user-data-dir={}", browser.profile.path().display());
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            // Chromium's own pages for suggestions below the address bar cost a third of its processor time here.
            "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup",
            "--disable-dev-shm-usage",
            "--force-device-scale-factor=1",
            folder.as_str(),
        ];
        let script_timeout = SCRIPT_TIMEOUT.as_millis();
        let options = json!({"capabilities": {"alwaysMatch": {
            "timeouts": {"script": u64::try_from(script_timeout).expect("the timeout fits into 64 bits")},
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let answer = browser.request("POST", "/session", Some(&options))?;
        let session = answer.pointer("/sessionId").and_then(Value::as_str);
        session.ok_or("no session")?.clone_into(&mut browser.session);
        Ok(browser)
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let failed = |error: std::io::Error| format!("chromedriver, {method} {path}: {error}");
        let body = body.map(ToString::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(failed)?;
        stream.set_read_timeout(Some(SCRIPT_TIMEOUT + Duration::from_secs(30))).map_err(failed)?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).map_err(failed)?;
        stream.write_all(body.as_bytes()).map_err(failed)?;
        // The driver ignores `connection: close`, so the body is read by its length.
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).map_err(failed)?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(|_| "invalid content-length")?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).map_err(failed)?;
        let answer: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        let value = answer.get("value").cloned().unwrap_or_default();
        match value.get("error") {
            Some(error) => Err(format!("{method} {path}: {error}: {}", value["message"])),
            None => Ok(value),
        }
    }

    fn session_request(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let path = format!("/session/{}{path}", self.session);
        self.request(method, &path, body).unwrap_or_else(|problem| panic!("{problem}"))
    }

    /// Opens a page and waits until it is loaded.
    pub fn open(&self, url: &str) {
        self.session_request("POST", "/url", Some(&json!({"url": url})));
    }

    /// Runs a script in the page and returns its result.
    pub fn run_script(&self, script: &str) -> Value {
        self.session_request("POST", "/execute/sync", Some(&json!({"script": script, "args": []})))
    }

    /// Waits until a script returns a result that is neither null nor false, and returns it. The script runs
    /// only in parsed pages, because a page that is still loading may have no body.
    pub fn wait_for(&self, what: &str, bound: Duration, script: &str) -> Value {
        let script = format!("if (document.readyState === 'loading') return null;\n{script}");
        wait_for(what, bound, || {
            let found = self.run_script(&script);
            (found != Value::Null && found != Value::Bool(false)).then_some(found)
        })
    }

    /// Sets the size of the viewport in pixels, and the light or dark color scheme.
    pub fn set_viewport(&self, width: u32, height: u32, dark: bool) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.send_devtools_command("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.send_devtools_command("Emulation.setEmulatedMedia", &media);
    }

    /// Sets the browser's time zone, by its name in the tz database.
    pub fn set_time_zone(&self, name: &str) {
        self.send_devtools_command("Emulation.setTimezoneOverride", &json!({"timezoneId": name}));
    }

    /// Allows or forbids scripts in the pages that are opened from now on. [`Self::run_script`] still works.
    pub fn set_scripts(&self, allowed: bool) {
        self.send_devtools_command(
            "Emulation.setScriptExecutionDisabled",
            &json!({"value": !allowed}),
        );
    }

    /// Presses keys one after the other, with the codes of `WebDriver`: U+E013 is the up arrow.
    pub fn press_keys(&self, keys: &str) {
        let strokes = keys.chars().flat_map(|key| {
            ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()}))
        });
        let strokes: Vec<_> = strokes.collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": strokes});
        self.session_request("POST", "/actions", Some(&json!({"actions": [keyboard]})));
    }

    /// Moves the mouse to a place on the screen, in pixels.
    pub fn move_mouse_to(&self, to: (f64, f64)) {
        self.perform_mouse_actions(&[mouse_move(to)]);
    }

    /// Clicks at a place on the screen.
    pub fn click(&self, at: (f64, f64)) {
        self.perform_mouse_actions(&[
            mouse_move(at),
            mouse_button("pointerDown"),
            mouse_button("pointerUp"),
        ]);
    }

    /// Clicks twice at a place on the screen.
    pub fn double_click(&self, at: (f64, f64)) {
        let (down, up) = (mouse_button("pointerDown"), mouse_button("pointerUp"));
        self.perform_mouse_actions(&[mouse_move(at), down.clone(), up.clone(), down, up]);
    }

    /// Presses the mouse button at `from` and releases it at `to`.
    pub fn drag(&self, from: (f64, f64), to: (f64, f64)) {
        let (down, up) = (mouse_button("pointerDown"), mouse_button("pointerUp"));
        let middle = (f64::midpoint(from.0, to.0), f64::midpoint(from.1, to.1));
        self.perform_mouse_actions(&[
            mouse_move(from),
            down,
            mouse_move(middle),
            mouse_move(to),
            up,
        ]);
    }

    fn perform_mouse_actions(&self, actions: &[Value]) {
        let mouse = json!({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions});
        self.session_request("POST", "/actions", Some(&json!({"actions": [mouse]})));
    }

    /// Simulates a finger that touches the screen at `from` and moves by `by`, in pixels.
    pub fn swipe(&self, from: (f64, f64), by: (f64, f64)) {
        let touch = |kind: &str, points: Value| {
            self.send_devtools_command(
                "Input.dispatchTouchEvent",
                &json!({"type": kind, "touchPoints": points}),
            );
        };
        touch("touchStart", json!([{"x": from.0, "y": from.1}]));
        for step in 1..=10 {
            let part = f64::from(step) / 10.0;
            let place = json!([{"x": from.0 + part * by.0, "y": from.1 + part * by.1}]);
            touch("touchMove", place);
        }
        touch("touchEnd", json!([]));
    }

    /// Saves a picture of the viewport, without scroll bars.
    pub fn screenshot(&self, path: &Path) {
        self.send_devtools_command("Emulation.setScrollbarsHidden", &json!({"hidden": true}));
        let data = self.session_request("GET", "/screenshot", None);
        write_picture(path, &data);
    }

    /// Saves a picture of the whole page, which may be higher than the viewport.
    pub fn screenshot_page(&self, path: &Path) {
        let size = self.run_script(PAGE_SIZE);
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1});
        let picture = json!({"format": "png", "optimizeForSpeed": true, "captureBeyondViewport": true, "clip": clip});
        let data = self.send_devtools_command("Page.captureScreenshot", &picture);
        write_picture(path, &data["data"]);
    }

    /// Sets the folder of downloads, which the browser creates.
    pub fn set_download_folder(&self, path: &Path) {
        let behavior = json!({"behavior": "allow", "downloadPath": path});
        self.send_devtools_command("Browser.setDownloadBehavior", &behavior);
    }

    /// Returns the bytes that the open page and its requests have transferred so far.
    pub fn transferred_bytes(&self) -> f64 {
        let all = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]";
        let script = format!("return {all}.reduce((sum, one) => sum + one.transferSize, 0)");
        self.run_script(&script).as_f64().unwrap_or(0.0)
    }

    /// Returns the messages of the browser's console.
    pub fn console_messages(&self) -> Vec<String> {
        let log = self.session_request("POST", "/se/log", Some(&json!({"type": "browser"})));
        let entries = log.as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| entry["message"].to_string()).collect()
    }

    fn send_devtools_command(&self, command: &str, parameters: &Value) -> Value {
        let body = json!({"cmd": command, "params": parameters});
        self.session_request("POST", "/goog/cdp/execute", Some(&body))
    }
}

/// Returns a movement of the mouse. `WebDriver` takes whole pixels.
fn mouse_move((x, y): (f64, f64)) -> Value {
    json!({"type": "pointerMove", "x": x.round(), "y": y.round(), "duration": 0})
}

fn mouse_button(what: &str) -> Value {
    json!({"type": what, "button": 0})
}

/// Writes a picture that the browser has sent as base64.
fn write_picture(path: &Path, data: &Value) {
    let bytes = BASE64_STANDARD.decode(data.as_str().expect("a picture is a text"));
    let bytes = bytes.expect("a picture is base64");
    std::fs::write(path, bytes).expect("the folder is writable");
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The end of the session closes the browser, which is the driver's only child.
        drop(self.request("DELETE", &format!("/session/{}", self.session), None));
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}
