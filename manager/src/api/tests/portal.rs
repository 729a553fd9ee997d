//! Tests of the pages, called without a socket.

use std::time::Duration;

use axum::body::Bytes;
use http_body_util::channel::Channel;
use tokio::time::Instant;

use super::super::access::throttle::Peer;
use super::*;

impl Bed {
    async fn page(&self, path: &str, host: &str, cookie: Option<&str>) -> (Response<()>, String) {
        let mut request = Request::get(path).header(header::HOST, host);
        if let Some(cookie) = cookie {
            request = request.header(header::COOKIE, cookie);
        }
        let response = self.send(request.body(Body::empty()).unwrap()).await;
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        (Response::from_parts(parts, ()), String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// Returns the page for a browser that already has these parts.
    async fn news(&self, path: &str, parts: &[String]) -> String {
        let request = Request::get(path).header(header::HOST, "localhost");
        let request = request.header("trial-manager-has", parts.join(" "));
        let response = self.send(request.body(Body::empty()).unwrap()).await;
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    async fn post_form(&self, path: &str, cookie: Option<&str>, form: &str) -> Response<Body> {
        let mut request = Request::post(path).header(header::HOST, "localhost");
        if let Some(cookie) = cookie {
            request = request.header(header::COOKIE, cookie);
        }
        self.send(request.body(Body::from(form.to_owned())).unwrap()).await
    }
}

const PAGES: [&str; 8] = [
    "/",
    "/trials",
    "/plots",
    "/trials/t",
    "/compare?trial=t&trial=u",
    "/configuration",
    "/login",
    "/api",
];

/// Without the lock of its database, an experiment has no manager.
#[tokio::test]
async fn an_interrupted_experiment_has_no_remaining_time() {
    let bed = Bed::searched().await;
    bed.end("u", SystemClock.now_ms()).await;
    let (_, page) = bed.page("/", "localhost:8080", None).await;
    let running = [">running</span>", "<dd>0.0 s</dd>", " left</small>"];
    assert!(running.into_iter().all(|text| page.contains(text)), "{page}");
    std::fs::remove_file(bed.folder.path().join("db.lock")).unwrap();
    let (_, page) = bed.page("/", "localhost:8080", None).await;
    assert!(page.contains(">interrupted</span>"), "{page}");
    assert!(page.contains("trial-manager resume e"), "{page}");
    assert!(running.into_iter().all(|text| !page.contains(text)), "{page}");
}

#[tokio::test]
async fn pages_are_complete_and_contact_no_other_host() {
    let bed = Bed::searched().await;
    for path in PAGES {
        let (response, page) = bed.page(path, "localhost:8080", None).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}: {page}");
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"), "{path}");
        let title = page.split("<title>").nth(1).unwrap_or_default();
        assert!(!title.starts_with("e · e<"), "{path}: the title contains the id twice");
        for elsewhere in ["http://", "https://", "src=\"//", " style=", "onclick", "<script>"] {
            assert!(!page.contains(elsewhere), "{path} contains {elsewhere:?}");
        }
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
    }
}

#[tokio::test]
async fn the_report_contacts_no_other_host() {
    let bed = Bed::searched().await;
    let (response, page) = bed.page("/report.html", "localhost:8080", None).await;
    let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; style-src 'unsafe-inline';"), "{policy}");
    for elsewhere in ["http://", "https://", "src=", "href=", "@import", "url(", "<script"] {
        assert!(!page.contains(elsewhere), "the report contains {elsewhere:?}");
    }
}

#[tokio::test]
async fn every_page_with_trials_has_downloads() {
    let bed = Bed::searched().await;
    for path in ["/", "/trials", "/plots", "/trials/t", "/compare?trial=t&trial=u"] {
        let (_, page) = bed.page(path, "localhost:8080", None).await;
        for format in ["csv", "json"] {
            let link = format!("href=\"/api/v1/experiment/export?format={format}");
            assert!(page.contains(&link), "{path} has no {format}: {page}");
        }
    }
    let (_, page) = bed.page("/compare?trial=t&trial=u", "localhost:8080", None).await;
    assert!(page.contains("export?format=csv&amp;trial=t&amp;trial=u\""), "{page}");
}

#[tokio::test]
async fn the_plots_can_be_read_without_scripts() {
    let bed = Bed::searched().await;
    let (_, page) = bed.page("/plots", "localhost:8080", None).await;
    let (_, rest) = page.split_once("<noscript>").unwrap();
    assert!(rest.starts_with("<p>Without JavaScript, this page has tables"), "{page}");
    assert!(page.contains("<noscript><table><thead><tr><th scope=\"col\">State</th>"), "{page}");
}

#[tokio::test]
async fn a_search_space_is_shown_for_every_tuner() {
    let bed = Bed::searched().await;
    let (_, page) = bed.page("/configuration", "localhost:8080", None).await;
    for cells in [
        "lr</th><td>uniform</td><td class=\"wrap\"><code>[0, 1]",
        "mode</th><td></td><td class=\"wrap\"><code>fast",
    ] {
        assert!(page.contains(cells), "{cells}: {page}");
    }
}

/// Returns the rows of a page's tables: the digest and the content of each.
fn rows(page: &str) -> Vec<(String, String)> {
    let rows = page.split("<tr data-part=\"").skip(1);
    rows.map(|row| {
        let (mark, rest) = row.split_once("\">").unwrap();
        (mark.to_owned(), rest.split_once("</tr>").unwrap().0.to_owned())
    })
    .collect()
}

#[tokio::test]
async fn an_update_of_a_page_contains_only_the_changes() {
    let bed = Bed::searched().await;
    let more = (2..100).map(|sequence| NewTrial {
        id: TrialJobId::new(format!("t{sequence}")).unwrap(),
        sequence,
        parameter_id: None,
        parameters: json!({"lr": sequence}),
        attempt: AttemptId::new("a").unwrap(),
        created_at_ms: 0,
    });
    bed.state.store.trials().insert(more.collect()).await.unwrap();
    let path = "/trials?sort=parameters.lr&order=desc";
    let (_, whole) = bed.page(path, "localhost", None).await;
    let first = rows(&whole);
    assert!(first.len() == 100 && first.iter().all(|(_, row)| row.contains("<td")), "{whole}");
    let had: Vec<_> = first.iter().map(|(mark, _)| mark.clone()).collect();

    let same = bed.news(path, &had).await;
    let expected: Vec<_> = had.iter().map(|mark| (mark.clone(), String::new())).collect();
    assert_eq!(rows(&same), expected, "in the same order, and empty");

    // One trial changes, and a new trial appears in the first row.
    bed.end("t50", 1).await;
    let new = NewTrial {
        id: TrialJobId::new("new").unwrap(),
        sequence: 100,
        parameter_id: None,
        parameters: json!({"lr": 1000}),
        attempt: AttemptId::new("a").unwrap(),
        created_at_ms: 0,
    };
    bed.state.store.trials().insert(vec![new]).await.unwrap();
    let news = bed.news(path, &had).await;
    let now = rows(&news);
    let full: Vec<_> = (0..).zip(&now).filter(|(_, (_, row))| !row.is_empty()).collect();
    assert_eq!(full.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 50], "{news}");
    assert!(full[0].1.1.contains("/trials/new") && full[1].1.1.contains("SUCCEEDED"), "{news}");
    assert_eq!(now[1].0, had[0]);
    assert!(news.len() < same.len() + 2000 && same.len() < whole.len() / 5, "{}", news.len());
    // A filtered list has the same rows with the same digests.
    let filtered = bed.news("/trials?state=SUCCEEDED&sort=parameters.lr&order=desc", &had).await;
    assert_eq!(rows(&filtered)[0], *full[1].1);

    // An update of a trial's page contains neither the output nor the results.
    let (_, whole) = bed.page("/trials/t", "localhost", None).await;
    let parts = whole.split("data-part=\"").skip(1);
    let had: Vec<_> = parts.map(|rest| rest.split('"').next().unwrap().to_owned()).collect();
    let news = bed.news("/trials/t", &had).await;
    assert!(had.len() == 3 && !news.contains("<h2>") && !news.contains("role=\"log\""), "{news}");
    assert!(news.contains("data-ended"), "{news}");
}

#[tokio::test]
async fn hostile_names_and_output_are_text() {
    let bed = Bed::searched().await;
    let (_, page) = bed.page("/", "localhost", None).await;
    assert!(page.contains("&lt;b&gt;demo&lt;/b&gt;") && !page.contains("<b>demo"), "{page}");
    let (_, page) = bed.page("/trials/t", "localhost", None).await;
    assert!(page.contains("&lt;script&gt;\u{fffd}") && !page.contains("<script>"), "{page}");
    let query = "/trials?q=%3Cscript%3E%22&sort=parameters.%3Cb%3E";
    let (_, page) = bed.page(query, "localhost", None).await;
    assert!(!page.contains("<script>") && !page.contains("<b>"), "{page}");
}

#[tokio::test]
async fn errors_are_shown_on_a_page() {
    let bed = Bed::searched().await;
    #[rustfmt::skip]
    let table = [
        ("/trials/nobody",      404, "There is no trial nobody."),
        ("/compare?trial=nobody", 404, "There is no trial nobody."),
        ("/trials?limit=0",     400, "Limit must be from 1 to 1000, not 0"),
        ("/trials?limit=many",  400, "The query cannot be read: limit: expected a whole number"),
        ("/trials?limit=99999999999", 400, "The query cannot be read: limit: expected a smaller number"),
        ("/trials?colour=red",  400, "The query cannot be read: colour: unknown field `colour`"),
        ("/trials/no.id",       400, "&quot;no.id&quot; is not a valid trial id: 1 to 32 of A-Z a-z 0-9 _ -, not beginning with -"),
        ("/login?next=a&next=b", 400, "The query cannot be read: duplicate field `next`"),
    ];
    for (path, status, detail) in table {
        let (response, page) = bed.page(path, "localhost", None).await;
        assert_eq!(response.status().as_u16(), status, "{path}");
        assert!(page.contains(detail) && page.contains("</html>"), "{path}: {page}");
    }
    // For an unknown address, a browser gets a page, and other clients get the response of the API.
    for (path, accept, is_page) in [
        ("/nowhere", "text/html,*/*", true),
        ("/nowhere", "*/*", false),
        ("/api/v1/nowhere", "text/html,*/*", false),
    ] {
        let request = Request::get(path).header(header::ACCEPT, accept);
        let response = bed.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        assert_eq!(body.starts_with(b"<!DOCTYPE html>"), is_page, "{path}, {accept}");
    }
    // Under a host name that is not this machine's, a page asks for the token and shows nothing.
    for path in PAGES.into_iter().filter(|path| *path != "/login") {
        let (response, page) = bed.page(path, "evil.example", None).await;
        assert_eq!(response.status(), StatusCode::SEE_OTHER, "{path}");
        let next = path.replace('/', "%2F").replace('?', "%3F").replace('=', "%3D");
        let next =
            if path == "/" { String::new() } else { format!("?next={}", next.replace('&', "%26")) };
        let expected = (format!("/login{next}"), String::new());
        assert_eq!(
            (response.headers()[header::LOCATION].to_str().unwrap().to_owned(), page),
            expected
        );
    }
}

#[tokio::test]
async fn a_user_with_the_token_may_use_buttons() {
    let bed = Bed::searched().await;
    let (_, page) = bed.page("/trials/u", "localhost", None).await;
    assert!(!page.contains("Stop this trial"));
    let refused = bed.post_form("/trials/u/stop", None, "").await;
    assert_eq!(refused.headers()[header::LOCATION], "/login");

    let wrong = bed.post_form("/login", None, "token=tku1.wrong").await;
    assert_eq!((wrong.status(), wrong.headers().get(header::SET_COOKIE)), (StatusCode::OK, None));
    // The login returns to the page before it, if that is one of the portal's pages.
    let (_, page) = bed.page("/trials?q=a%26b", "localhost", None).await;
    assert!(page.contains("/login?next=%2Ftrials%3Fq%3Da%2526b"), "{page}");
    let (_, page) = bed.page("/login?next=%2Ftrials%3Fq%3Da%2526b", "localhost", None).await;
    assert!(page.contains(r#"name="next" value="/trials?q=a%26b""#), "{page}");
    let (_, page) = bed.page("/login?next=%2F%2Fevil.example", "localhost", None).await;
    assert!(!page.contains("evil"), "{page}");
    let token = bed.user().trim_start_matches("Bearer ").to_owned();
    for (next, leads_to) in [
        ("", "/"),
        ("%2Ftrials%3Fq%3Da%2526b", "/trials?q=a%26b"),
        ("%2F%2Fevil.example", "/"),
        ("%2F%5Cevil.example", "/"),
        ("https%3A%2F%2Fevil.example", "/"),
        ("%2F%0D%0ASet-Cookie%3A+x", "/"),
    ] {
        let form = format!("token={token}&next={next}");
        let answer = bed.post_form("/login", None, &form).await;
        assert_eq!(answer.headers()[header::LOCATION], leads_to, "{next}");
    }
    let right = bed.post_form("/login", None, &format!("token={token}")).await;
    let cookie = right.headers()[header::SET_COOKIE].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let (_, page) = bed.page("/trials/u", "localhost", Some(&cookie)).await;
    assert!(page.contains("Stop this trial") && page.contains("Log out"), "{page}");
    let stopped = bed.post_form("/stop", Some(&cookie), "").await;
    assert_eq!(stopped.status(), StatusCode::SEE_OTHER);
    assert!(bed.handle.is_stop_requested());
    let odd = bed.post_form("/limits", Some(&cookie), "max_trial_number=many").await;
    assert_eq!(odd.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn responses_are_compressed_and_assets_are_cached() {
    let bed = Bed::searched().await;
    let request = |path: &str, name: header::HeaderName, value: &str| {
        let request = Request::get(path).header(header::HOST, "localhost").header(name, value);
        request.body(Body::empty()).unwrap()
    };
    let response = bed.send(request("/assets/uplot.js", header::ACCEPT_ENCODING, "br, gzip")).await;
    assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
    let tag = response.headers()[header::ETAG].to_str().unwrap().to_owned();
    let squeezed = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let mut whole = String::new();
    let mut reader = flate2::read::GzDecoder::new(squeezed.as_ref());
    std::io::Read::read_to_string(&mut reader, &mut whole).unwrap();
    assert!(whole.contains("uPlot") && squeezed.len() < whole.len() / 3 * 2);
    let again = bed.send(request("/assets/uplot.js", header::IF_NONE_MATCH, &tag)).await;
    assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    let plain = bed.send(request("/assets/uplot.js", header::ACCEPT_ENCODING, "gzip;q=0")).await;
    assert_eq!(plain.headers().get(header::CONTENT_ENCODING), None);
    let least = bed.send(request("/assets/uplot.js", header::ACCEPT_ENCODING, "gzip;q=0.0")).await;
    assert_eq!(least.headers().get(header::CONTENT_ENCODING), None);
    assert_eq!(
        plain.headers()[header::VARY],
        "accept-encoding",
        "a cache distinguishes the responses"
    );
    let stream = bed.send(request("/api/v1/events", header::ACCEPT_ENCODING, "gzip")).await;
    assert_eq!(stream.headers().get(header::CONTENT_ENCODING), None);
    let nothing = bed.send(request("/assets/..%2fsecret", header::ACCEPT, "*/*")).await;
    assert_eq!(nothing.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_ticket_logs_in_one_browser() {
    let bed = Bed::searched().await;
    let ask = |token: Option<String>| {
        let mut request = Request::post("/api/v1/session/ticket");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, token);
        }
        request.body(Body::empty()).unwrap()
    };
    assert_eq!(bed.send(ask(None)).await.status(), StatusCode::UNAUTHORIZED);
    let answer = bed.send(ask(Some(bed.user()))).await;
    let answer = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
    let path = answer["path"].as_str().unwrap();
    let (response, _) = bed.page(path, "127.0.0.1:8080", None).await;
    let headers = response.headers();
    assert_eq!(headers[header::REFRESH], "0; url=/");
    assert_eq!(headers[header::REFERRER_POLICY], "no-referrer");
    let cookie = headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap();
    let (_, page) = bed.page("/", "127.0.0.1:8080", Some(cookie)).await;
    assert!(page.contains("Log out"), "{page}");
    let (response, page) = bed.page(path, "127.0.0.1:8080", None).await;
    assert!(response.headers().get(header::SET_COOKIE).is_none(), "a ticket is valid once");
    assert!(page.contains("has been used"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_login_without_a_body_times_out() {
    let bed = Bed::new().await;
    let (_sender, silent) = Channel::<Bytes, std::io::Error>::new(1);
    let request = Request::post("/login")
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Body::new(silent));
    assert_eq!(bed.send(request.unwrap()).await.status(), StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test]
async fn a_session_ends_on_the_server_when_its_browser_logs_out() {
    let bed = Bed::searched().await;
    let token = bed.user().trim_start_matches("Bearer ").to_owned();
    let log_in = async || {
        let answer = bed.post_form("/login", None, &format!("token={token}")).await;
        let cookie = answer.headers()[header::SET_COOKIE].to_str().unwrap();
        assert!(cookie.contains("Max-Age=2592000;"), "{cookie}");
        cookie.split(';').next().unwrap().to_owned()
    };
    let (mine, other) = (log_in().await, log_in().await);
    let delete = async |cookie: &str| {
        let request = Request::delete("/api/v1/session").header(header::HOST, "localhost");
        let request = request.header(header::COOKIE, cookie).body(Body::empty()).unwrap();
        bed.send(request).await.status()
    };
    let left = bed.post_form("/logout", Some(&mine), "").await;
    let cleared = left.headers()[header::SET_COOKIE].to_str().unwrap();
    assert!(left.status() == StatusCode::SEE_OTHER && cleared.contains("Max-Age=0"), "{cleared}");
    let refused = bed.post_form("/stop", Some(&mine), "").await;
    assert_eq!(refused.headers()[header::LOCATION], "/login", "a copied cookie is no longer valid");
    let admitted = bed.post_form("/stop", Some(&other), "").await;
    assert_ne!(admitted.headers()[header::LOCATION], "/login", "another session continues");
    assert!(bed.handle.is_stop_requested());
    assert_eq!(delete(&other).await, StatusCode::NO_CONTENT);
    assert_eq!(delete(&other).await, StatusCode::UNAUTHORIZED);
    assert_eq!(bed.state.store.sessions().all().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn wrong_tokens_are_delayed_and_the_right_one_is_accepted() {
    let bed = Bed::searched().await;
    let token = bed.user().trim_start_matches("Bearer ").to_owned();
    let peer = |last| Peer([192, 0, 2, last].into());
    let form = async |from: Option<Peer>, token: &str| {
        let request = Request::post("/login").header(header::HOST, "localhost");
        let mut request = request.body(Body::from(format!("token={token}"))).unwrap();
        from.map(|from| request.extensions_mut().insert(from));
        let began = Instant::now();
        let status = bed.send(request).await.status();
        (status, began.elapsed())
    };
    let bearer = async |from: Peer, token: &str| {
        let request = Request::get("/api/v1/experiment").header(header::HOST, "localhost");
        let request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(from);
        let began = Instant::now();
        let status = bed.send(request).await.status();
        (status, began.elapsed())
    };
    let second = Duration::from_secs(1);
    for guess in 0..6 {
        assert!(
            form(Some(peer(1)), &format!("guess{guess}")).await.1 < second,
            "the first failures have no pause"
        );
        assert!(bearer(peer(2), &format!("guess{guess}")).await.1 < second);
    }
    for guess in 6..12 {
        form(Some(peer(1)), &format!("guess{guess}")).await;
        bearer(peer(2), &format!("guess{guess}")).await;
    }
    let (status, waited) = form(Some(peer(1)), "guess").await;
    assert!(status == StatusCode::OK && waited >= second, "{status} after {waited:?}");
    let (status, waited) = bearer(peer(2), "guess").await;
    assert!(status == StatusCode::UNAUTHORIZED && waited >= second, "{status} after {waited:?}");
    let (status, waited) = form(Some(peer(1)), &token).await;
    assert!(status == StatusCode::SEE_OTHER && waited < 5 * second, "{status} after {waited:?}");
    let (status, waited) = bearer(peer(2), &token).await;
    assert!(status == StatusCode::OK && waited < 5 * second, "{status} after {waited:?}");
    let (status, waited) = form(Some(peer(3)), &token).await;
    assert!(status == StatusCode::SEE_OTHER && waited < second, "another address: {waited:?}");
    let (status, waited) = form(None, "guess").await;
    assert!(status == StatusCode::OK && waited < second, "over the Unix socket: {waited:?}");
}
