//! `open`: shows the portal in the browser, logged in. The token goes to the manager alone, which gives a ticket
//! for it; the ticket goes to the browser in a file that only its owner reads, so that no process list shows it.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use maud::{DOCTYPE, html};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use super::ask::{Error, Place};
use super::{BAD_INPUT, DONE, NOTHING_SUCCEEDED, data_dir, show};
use crate::util::files::write_file;

/// The time in which a browser that fails does so.
const BROWSER_FAIL_TIME: Duration = Duration::from_secs(3);

/// Opens the portal, or prints where it is; the program's exit code.
pub(super) async fn open(place: &Place, print: bool) -> u8 {
    match shown(place, print).await {
        Ok(()) => DONE,
        Err(error) => {
            show(&error);
            if error.is_usage() { BAD_INPUT } else { NOTHING_SUCCEEDED }
        }
    }
}

async fn shown(place: &Place, print: bool) -> Result<(), Error> {
    let (client, url) = place.portal().await?;
    let answer = client.ask("POST", "/api/v1/session/ticket", None).await?;
    let path = answer.get("path").and_then(Value::as_str).unwrap_or("/login");
    let minutes = answer.get("seconds").and_then(Value::as_u64).unwrap_or(60) / 60;
    let address = format!("{url}{path}");
    let browser = if print { None } else { browser() };
    if let Some(browser) = browser {
        let folder = data_dir(place.data_dir.clone());
        let file = folder.join("open.html");
        std::fs::create_dir_all(&folder)
            .and_then(|()| write_file(&file, 0o600, &door(&address)))
            .map_err(|source| Error::File { path: file.clone(), source })?;
        if runs(&browser, &file).await {
            return say(&format!(
                "{url} is shown by {browser}; if it is not: trial-manager open --print"
            ));
        }
    }
    say(&format!(
        "{address}\n  lets one browser in, within {minutes} minutes; without logging in: {url}"
    ))
}

fn say(text: &str) -> Result<(), Error> {
    writeln!(std::io::stdout().lock(), "{text}").map_err(Error::Output)
}

/// A page that leads to `address`. One from a file names no page that it comes from.
fn door(address: &str) -> String {
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
            body { a href=(address) { "To the portal" } }
        }
    };
    page.into_string()
}

/// The program that shows pages here. `None`: there is none, or no user to see it.
fn browser() -> Option<String> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(list) = set("BROWSER") {
        // As xdg-open reads it: several, separated by colons.
        return list.split(':').find(|name| !name.is_empty()).map(str::to_owned);
    }
    let screen = set("WAYLAND_DISPLAY").or_else(|| set("DISPLAY"));
    screen.map(|_| "xdg-open".to_owned())
}

/// Starts the browser; whether it has not failed.
async fn runs(browser: &str, file: &Path) -> bool {
    let mut words = browser.split_whitespace();
    let Some(program) = words.next() else { return false };
    let mut command = Command::new(program);
    command.args(words.filter(|word| *word != "%s")).arg(format!("file://{}", file.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    match timeout(BROWSER_FAIL_TIME, child.wait()).await {
        Ok(ended) => ended.is_ok_and(|status| status.success()),
        // It is the browser itself.
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_that_leads_to_the_portal_is_no_place_for_markup() {
        let page = door("http://127.0.0.1:8080/login?ticket=a\"><script>");
        assert!(!page.contains("<script>"), "{page}");
        assert!(page.contains(r#"content="0; url=http://127.0.0.1:8080/login?ticket=a"#), "{page}");
    }
}
