//! `open`: opens the portal in the browser, logged in. Only the manager receives the token, and returns a ticket for
//! it. The browser reads the ticket from a file that only its owner can read, so that no process list shows the
//! ticket.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use maud::{DOCTYPE, html};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use super::selection::{Error, ExperimentArgs};
use super::{EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, data_dir, print_error};
use crate::util::files::write_file;

/// The time within which a browser that cannot start has exited.
const BROWSER_FAIL_TIME: Duration = Duration::from_secs(3);

/// Opens the portal or prints its address, and returns the exit code.
pub(super) async fn open(experiment_args: &ExperimentArgs, print: bool) -> u8 {
    match open_portal(experiment_args, print).await {
        Ok(()) => EXIT_DONE,
        Err(error) => {
            print_error(&error);
            if error.is_usage() { EXIT_BAD_INPUT } else { EXIT_FAILED }
        }
    }
}

async fn open_portal(experiment_args: &ExperimentArgs, print: bool) -> Result<(), Error> {
    let (client, url) = experiment_args.portal().await?;
    let answer = client.request_json("POST", "/api/v1/session/ticket", None).await?;
    let path = answer.get("path").and_then(Value::as_str).unwrap_or("/login");
    let minutes = answer.get("seconds").and_then(Value::as_u64).unwrap_or(60) / 60;
    let address = format!("{url}{path}");
    let browser = if print { None } else { find_browser() };
    if let Some(browser) = browser {
        let folder = data_dir(experiment_args.data_dir.clone());
        let file = folder.join("open.html");
        std::fs::create_dir_all(&folder)
            .and_then(|()| write_file(&file, 0o600, &redirect_page(&address)))
            .map_err(|source| Error::ReadFile { path: file.clone(), source })?;
        if start_browser(&browser, &format!("file://{}", file.display())).await {
            return print_line(&format!(
                "opened {url} with {browser}; if no page appears, run `trial-manager open --print`"
            ));
        }
    }
    print_line(&address)?;
    // Not on standard output, which a script reads. Ignored: standard error may be closed.
    let note = format!("logs in one browser, once, within {minutes} minutes; without login: {url}");
    drop(writeln!(std::io::stderr().lock(), "  {note}"));
    Ok(())
}

fn print_line(text: &str) -> Result<(), Error> {
    writeln!(std::io::stdout().lock(), "{text}").map_err(Error::Output)
}

/// Returns a page that redirects to `address`. The browser sends no referrer for it.
fn redirect_page(address: &str) -> String {
    let to = format!("0; url={address}");
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="referrer" content="no-referrer";
                meta http-equiv="refresh" content=(to);
                title { "trial-manager" }
            }
            body { a href=(address) { "Open the portal" } }
        }
    };
    page.into_string()
}

/// Returns the program that opens pages. Returns `None` if there is no such program or no screen.
fn find_browser() -> Option<String> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(list) = set("BROWSER") {
        // A list separated by colons, as for xdg-open.
        return list.split(':').find(|name| !name.is_empty()).map(str::to_owned);
    }
    let screen = set("WAYLAND_DISPLAY").or_else(|| set("DISPLAY"));
    screen.map(|_| "xdg-open".to_owned())
}

/// Opens an address in the browser, if this machine has one, without waiting for it.
pub(super) fn start_browser_at(address: &str) {
    if let Some(browser) = find_browser() {
        let address = address.to_owned();
        tokio::spawn(async move { start_browser(&browser, &address).await });
    }
}

/// Starts the browser at an address. Returns `false` if it fails within [`BROWSER_FAIL_TIME`].
async fn start_browser(browser: &str, address: &str) -> bool {
    let mut words = browser.split_whitespace();
    let Some(program) = words.next() else { return false };
    let mut command = Command::new(program);
    command.args(words.filter(|word| *word != "%s")).arg(address);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    match timeout(BROWSER_FAIL_TIME, child.wait()).await {
        Ok(ended) => ended.is_ok_and(|status| status.success()),
        // The process still runs, so it is the browser itself.
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_redirect_page_escapes_markup_in_the_address() {
        let page = redirect_page("http://127.0.0.1:8080/login?ticket=a\"><script>");
        assert!(!page.contains("<script>"), "{page}");
        assert!(page.contains(r#"content="0; url=http://127.0.0.1:8080/login?ticket=a"#), "{page}");
    }
}
