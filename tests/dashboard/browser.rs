//! A headless Chromium with one page, steered by the `DevTools` protocol over two pipes. No port, no socket, no network.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything may take before it counts as never.
const PATIENCE: Duration = Duration::from_secs(60);

const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

pub(crate) struct Browser {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<Value>,
    events: VecDeque<Value>,
    last_id: u64,
    session: Option<String>,
    _profile: TempDir,
}

fn binary() -> String {
    if let Ok(named) = std::env::var("GHOSTFLEET_CHROMIUM") {
        return named;
    }
    let on_path = |name: &&&str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
    };
    let found = NAMES.iter().find(on_path);
    (*found.expect("no Chromium on PATH; run scripts/setup, or name one with GHOSTFLEET_CHROMIUM")).to_owned()
}

impl Browser {
    /// A browser that shows nothing yet, in a window of this size.
    pub(crate) fn start(width: u32, height: u32) -> Self {
        let profile = TempDir::new().unwrap();
        let log = File::create(profile.path().join("log")).unwrap();
        let mut command = Command::new("sh");
        // Chromium reads orders from descriptor 3 and answers on 4.
        command.args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null"#, "sh"]);
        command.arg(binary()).args([
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
            command.arg("--no-sandbox");
        }
        command.arg("about:blank");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while said.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else {
                    return;
                };
                if sender.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut browser = Self {
            child,
            orders,
            answers,
            events: VecDeque::new(),
            last_id: 0,
            session: None,
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", &attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        let screen = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        browser.call("Emulation.setDeviceMetricsOverride", &screen);
        browser.call("Page.enable", &json!({}));
        browser.call("Runtime.enable", &json!({}));
        browser.call("Log.enable", &json!({}));
        browser
    }

    /// One order and its answer.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        self.last_id += 1;
        let mut order = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            order["sessionId"] = json!(session);
        }
        self.orders.write_all(format!("{order}\0").as_bytes()).unwrap();
        loop {
            let answer = self.answers.recv_timeout(PATIENCE);
            let mut answer = answer.unwrap_or_else(|_| panic!("never answered: {method} {params}"));
            if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method} {params}: {answer}");
                return answer["result"].take();
            }
            self.events.push_back(answer);
        }
    }

    /// Opens a page and waits until it is there.
    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", &json!({"url": url}));
        self.until("document.readyState === 'complete'");
    }

    /// Value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let evaluate = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", &evaluate);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression in the page is truthy, which is looked at after every change of the document; its value.
    pub(crate) fn until(&mut self, expression: &str) -> Value {
        self.value(&format!(
            "new Promise((resolve) => {{
                const look = () => {{
                    const value = ({expression});
                    if (value) {{
                        observer.disconnect();
                        resolve(value);
                    }}
                }};
                const observer = new MutationObserver(look);
                const all = {{ subtree: true, childList: true, attributes: true, characterData: true }};
                observer.observe(document, all);
                document.addEventListener('readystatechange', look);
                look();
            }})"
        ))
    }

    /// Presses and releases a key, as `ArrowRight` or `Enter`.
    pub(crate) fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            other => panic!("no key code for {other}"),
        };
        let mut event = json!({"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code});
        if key == "Enter" {
            event["text"] = json!("\r");
        }
        self.call("Input.dispatchKeyEvent", &event);
        event["type"] = json!("keyUp");
        self.call("Input.dispatchKeyEvent", &event);
    }

    /// Types a text where the focus is.
    pub(crate) fn write(&mut self, text: &str) {
        self.call("Input.insertText", &json!({"text": text}));
    }

    /// Clicks the middle of an element.
    pub(crate) fn click(&mut self, selector: &str) {
        let place = self.value(&format!(
            "(() => {{
                const element = document.querySelector({selector:?});
                element.scrollIntoView({{ block: 'center' }});
                const box = element.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"
        ));
        self.click_at(place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
    }

    pub(crate) fn click_at(&mut self, x: f64, y: f64) {
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", &event);
        }
    }

    /// Writes a picture of the page where `GHOSTFLEET_SCREENSHOTS` says, if it says so: for people to look at.
    pub(crate) fn picture(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("GHOSTFLEET_SCREENSHOTS") else {
            return;
        };
        let shot = self.call(
            "Page.captureScreenshot",
            &json!({"format": "png", "captureBeyondViewport": true}),
        );
        let path = std::path::Path::new(&folder).join(format!("{name}.png.base64"));
        std::fs::write(path, shot["data"].as_str().unwrap()).unwrap();
    }

    /// Everything that the page complained of.
    pub(crate) fn complaints(&mut self) -> Vec<Value> {
        // An answer that comes after them: whatever was said before is here.
        self.value("1");
        let is_complaint = |event: &&Value| {
            event["method"] == "Runtime.exceptionThrown"
                || (event["method"] == "Log.entryAdded" && event["params"]["entry"]["level"] == "error")
        };
        self.events.iter().filter(is_complaint).cloned().collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Without a reader of its answers it ends by itself; this is only faster.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
