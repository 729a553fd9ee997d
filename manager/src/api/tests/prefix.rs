//! Tests of the routes below a prefix that the user chose.

use super::*;
use crate::api::serve_under_prefix;

async fn page(router: &Router, path: &str) -> (StatusCode, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8_lossy(&bytes).into_owned())
}

#[tokio::test]
async fn all_routes_are_also_served_below_the_prefix_and_link_there() {
    let bed = Bed::new().await;
    let router = serve_under_prefix("/my/search", bed.router.clone());
    for path in ["/healthz", "/api/v1/nni/version"] {
        let plain = page(&router, path).await;
        assert_eq!(plain.0, StatusCode::OK, "{path}");
        assert_eq!(page(&router, &format!("/my/search{path}")).await, plain, "{path}");
    }
    let (status, login) = page(&router, "/my/search/login").await;
    assert_eq!(status, StatusCode::OK);
    assert!(login.contains("\"/my/search/assets/"), "{login}");
    let (_, plain) = page(&router, "/login").await;
    assert!(plain.contains("\"/assets/") && !plain.contains("/my/search"), "{plain}");
    assert_eq!(page(&router, "/my/searches/healthz").await.0, StatusCode::NOT_FOUND);
}
