//! PURE: the image of a pod, with its digest.

use serde_json::Value;

/// Returns the image of a container as the kubelet resolved it, without the prefix of Docker's runtime. An image that
/// was never pulled from a registry has only a bare digest. `None`: the kubelet has not pulled the image yet.
pub fn of_pod(pod: &Value, container: &str) -> Option<String> {
    let statuses = pod.pointer("/status/containerStatuses")?.as_array()?;
    let own = statuses.iter().find(|status| status["name"] == container)?;
    let image = own.get("imageID")?.as_str()?;
    let image = image.strip_prefix("docker-pullable://").unwrap_or(image);
    (!image.is_empty()).then(|| image.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_image_of_the_trials_container_is_read() {
        let digest = "docker.io/library/busybox@sha256:6bbe";
        let table = [
            (json!([{"name": "main", "imageID": digest}]), Some(digest)),
            (
                json!([{"name": "main", "imageID": format!("docker-pullable://{digest}")}]),
                Some(digest),
            ),
            (
                json!([{"name": "sidecar", "imageID": "x"}, {"name": "main", "imageID": digest}]),
                Some(digest),
            ),
            (json!([{"name": "main", "imageID": "sha256:1b56"}]), Some("sha256:1b56")),
            (json!([{"name": "main", "imageID": ""}]), None),
            (json!([{"name": "main", "imageID": 7}]), None),
            (json!([{"name": "sidecar", "imageID": digest}]), None),
            (json!({"name": "main"}), None),
        ];
        for (statuses, image) in table {
            let pod = json!({"status": {"containerStatuses": statuses}});
            assert_eq!(of_pod(&pod, "main").as_deref(), image, "{pod}");
        }
    }
}
