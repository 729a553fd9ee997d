//! Tests of the API's description: it describes exactly the routes that are served.

use axum::http::Method;

use super::*;

/// Returns whether an address is described elsewhere: the agents' and NNI's routes have their own documents, the
/// portal's are pages, and the probes' have no data.
fn is_described_elsewhere(path: &str) -> bool {
    let own = path.strip_prefix("/api/v1/");
    own.is_none_or(|rest| rest.starts_with("agent/") || rest.starts_with("nni/"))
}

/// Returns the addresses of the router, which only its debug output contains.
fn addresses(router: &Router) -> Vec<String> {
    let debug = format!("{router:?}");
    let (_, node) =
        debug.split_once("paths: {").expect("the debug output of a router contains its addresses");
    let mut all: Vec<String> =
        node.split('"').filter(|text| text.starts_with('/')).map(str::to_owned).collect();
    all.sort();
    all.dedup();
    all
}

#[tokio::test]
async fn every_address_is_described() {
    let bed = Bed::new().await;
    let (_, document) = bed.get_json("/api/v1/openapi.json").await;
    let all = addresses(&bed.router);
    for known in ["/", "/healthz", "/api/v1/agent/reports", "/api/v1/trials/{trial}/stop"] {
        assert!(all.iter().any(|path| path == known), "{known} is not in {all:?}");
    }
    for path in all.iter().filter(|path| !is_described_elsewhere(path)) {
        // The router does not serve this method, and the response names the methods that it serves.
        let request = Request::builder().method("NONE").uri(path.replace(['{', '}'], ""));
        let response = bed.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
        let allowed = response.headers()[header::ALLOW].to_str().unwrap();
        for method in allowed.split(',').filter(|method| *method != "HEAD") {
            let operation = &document["paths"][path][method.to_lowercase()];
            assert!(operation.is_object(), "{method} {path} is served, but not described");
        }
    }
}

#[test]
fn every_route_is_in_the_reference_for_users() {
    let page = include_str!("../../../../../docs/rest-api.md");
    let document = crate::api::user::document::document();
    let paths = document["paths"].as_object().unwrap();
    for (path, methods) in paths {
        let path = path.strip_prefix("/api/v1").unwrap().replace("{stream}", "stdout");
        for method in methods.as_object().unwrap().keys() {
            let route = format!("`{} {path}", method.to_uppercase());
            let is_listed = ["`", "?"].iter().any(|end| page.contains(&format!("{route}{end}")));
            assert!(is_listed, "{route}` is not in docs/rest-api.md");
        }
    }
}

#[tokio::test]
async fn every_documented_address_is_served() {
    let bed = Bed::searched().await;
    let folder = bed.folder.path().join("e/t");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("model"), "").unwrap();
    let (_, document) = bed.get_json("/api/v1/openapi.json").await;
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 10);
    for (path, methods) in paths {
        // Only a home serves these routes.
        let of_home = path.starts_with("/api/v1/experiments");
        // Each parameter and each refusal has a schema for the authors of clients.
        for (method, operation) in methods.as_object().unwrap() {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                assert!(parameter["schema"].is_object(), "{method} {path}: {parameter}");
            }
            for (status, answer) in operation["responses"].as_object().unwrap() {
                let problem = answer["content"]["application/problem+json"].is_object();
                assert_eq!(problem, status.as_str() >= "400", "{method} {path}: {status}");
            }
            assert!(operation["responses"]["401"].is_object(), "{method} {path}");
        }
        let path = path.replace("{trial}", "t").replace("{stream}", "stdout");
        for method in methods.as_object().unwrap().keys().filter(|_| !of_home) {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let asked = if path.ends_with("/file") { "?name=model" } else { "" };
            let address = format!("{path}{asked}");
            let request = Request::builder().method(method.clone()).uri(address);
            let request = request.header(header::HOST, "localhost").body(Body::empty()).unwrap();
            let status = bed.send(request).await.status();
            // A served route refuses a change without the user's token.
            let expected = match method {
                // The trial's code was not recorded.
                Method::GET if path.ends_with("/diff") => StatusCode::NOT_FOUND,
                Method::GET => StatusCode::OK,
                _ => StatusCode::UNAUTHORIZED,
            };
            assert_eq!(status, expected, "{method} {path}");
        }
    }
}
