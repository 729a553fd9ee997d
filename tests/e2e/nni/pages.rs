//! NNI's unchanged web pages, from its wheel, over this manager's API. Every page must load without errors.

use std::process::Command;

use serde_json::json;
use trialkeeper_tests::{
    Browser, RunningProgram, TestBed, WAIT_TIMEOUT, nni_python, seed, wait_for,
};

/// A server that gives pages and API one address, as NNI's manager does. It serves the files of `nni_node`,
/// and forwards `/api`, `/logs` and `/login` to the manager. It prints its port.
const FRONT_SERVER: &str = r#"
import http.client, http.server, os, sys, urllib.parse
import nni_node

pages = os.path.join(os.path.dirname(nni_node.__file__), "static")
manager = int(sys.argv[1])

class Front(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args):
        super().__init__(*args, directory=pages)

    def log_message(self, *args):
        pass

    def answer(self):
        path = urllib.parse.urlparse(self.path).path
        if path.startswith(("/api/", "/logs/")) or path == "/login":
            length = int(self.headers.get("content-length") or 0)
            upstream = http.client.HTTPConnection("127.0.0.1", manager)
            upstream.request(self.command, self.path, self.rfile.read(length), dict(self.headers))
            answer = upstream.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        if not os.path.isfile(os.path.join(pages, path.lstrip("/"))):
            self.path = "/index.html"
        super().do_GET()

    do_GET = do_POST = do_PUT = do_DELETE = answer

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Front)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

/// Serves a stored search, and NNI's pages over it. Returns both processes and the URL.
fn serve_nni_pages(
    bed: &TestBed,
    python: &std::path::Path,
    trials: i64,
) -> (RunningProgram, RunningProgram, String) {
    seed::create_store(&bed.data_folder(), "small", trials, 5, 10).unwrap();
    // If trials number their own steps, the numbers can have gaps. NNI's pages accept no gaps in a list.
    let store = rusqlite::Connection::open(bed.data_folder().join("small/trialkeeper.db")).unwrap();
    let update = "UPDATE report SET body = json_set(body, '$.sequence', 10 * seq) \
                  WHERE attempt <= 5 AND kind = 'metric' AND sums_up = 0";
    assert_eq!(store.execute(update, []).unwrap(), 25);
    drop(store);
    let (serving, url) = bed.serve("small");
    let (_, port) = url.rsplit_once(':').unwrap();
    let front = bed.write("front.py", FRONT_SERVER);
    let front = bed.start(Command::new(python).arg(front).arg(port));
    let port = wait_for("the pages to be served", WAIT_TIMEOUT, || {
        let stdout = String::from_utf8(front.stdout()).unwrap();
        stdout.lines().next().filter(|_| stdout.ends_with('\n')).map(str::to_owned)
    });
    (serving, front, format!("http://127.0.0.1:{port}"))
}

/// A script that shows all charts of a page, one after the other.
const SHOW_ALL_TABS: &str = "const tabs = [...document.querySelectorAll('[role=tab]')];
for (const tab of tabs) tab.click(); return tabs.length";

#[test]
#[ignore = "needs a browser and NNI from PyPI"]
fn every_page_of_nni_shows_the_search_without_errors() {
    let (browser, python) = (Browser::start(), nni_python());
    // From 100 trials on, the pages request metrics in groups, and the latest metrics.
    for trials in [20, 130] {
        let bed = TestBed::new();
        let (_serving, _front, url) = serve_nni_pages(&bed, &python, trials);
        browser.set_viewport(1600, 1200, false);
        for (path, shown) in [
            ("/oview", ["a large search", "SUCCEEDED"]),
            ("/experiment", ["small", "a large search"]),
            ("/detail", ["SUCCEEDED", "t00002"]),
        ] {
            browser.open(&format!("{url}{path}"));
            for text in shown {
                let what = format!("{path} to show {text}");
                let holds = format!("return document.body.innerText.includes({})", json!(text));
                browser.wait_for(&what, WAIT_TIMEOUT, &holds);
            }
        }
        // All charts of the last page.
        assert_eq!(
            browser.run_script(SHOW_ALL_TABS),
            json!(4),
            "expected charts: results, parameters, durations, steps"
        );
        browser.wait_for(
            "the steps' chart",
            WAIT_TIMEOUT,
            "return document.querySelector('canvas') !== null",
        );
        let is_shown = "return document.body.innerText.includes('Trial jobs')";
        assert_eq!(browser.run_script(is_shown), json!(true), "an error has emptied the page");
        // The pages load fonts and icons from Microsoft's servers.
        let mut messages = browser.console_messages();
        messages.retain(|message| !message.contains(".cdn.office.net"));
        assert_eq!(messages, [""; 0], "{trials} trials");
    }
}
