//! A user's notes about an experiment: text in Markdown, tags, the archive. The home's own folder contains them.

use axum::extract::{Path, Request, State};
use axum::response::{Redirect, Response};
use maud::{PreEscaped, html};
use trial_protocol::ExperimentId;

use super::super::Error;
use super::super::portal::base::url;
use super::super::portal::{PageRefusal, Viewer, display, page as render_page, read_user_form};
use super::catalog::{Annotation, MAX_NOTE_BYTES};
use super::{Home, list, markdown};
use crate::config::{MAX_TAGS, label_problem};

async fn find_experiment(
    home: &Home,
    id: &str,
) -> Result<(ExperimentId, super::catalog::CatalogEntry), Error> {
    let unknown = || Error::UnknownExperiment(format!("there is no experiment {id} in this home"));
    let entries = home.0.catalog.refresh(home).await;
    let entry = entries.into_iter().find(|entry| entry.summary.id == id).ok_or_else(unknown)?;
    Ok((ExperimentId::new(id).map_err(|_| unknown())?, entry))
}

/// `GET /about/{id}`: shows the notes about an experiment.
pub(super) async fn page(
    viewer: Viewer,
    State(home): State<Home>,
    Path(id): Path<String>,
) -> Result<Response, PageRefusal> {
    let (id, entry) = find_experiment(&home, &id).await?;
    let name = display::sanitize(list::display_name(&entry.summary));
    let Annotation { archived, notes, .. } = &entry.annotation;
    let content = html! {
        h1 { (name) }
        p.hint {
            a href=(url(&format!("/e/{id}/"))) { "Open experiment" } ", id " code { (id) }
            @if *archived { ", archived" }
        }
        @if let Some(trouble) = &entry.summary.trouble { p.trouble { (display::sanitize(trouble)) } }
        @if !entry.tags().is_empty() {
            p { @for tag in entry.tags() { span.tag { (display::sanitize(tag)) } " " } }
        }
        article.note { @if notes.trim().is_empty() { p.hint { "No notes yet." } } @else { (PreEscaped(markdown::render(notes).0)) } }
        @if viewer.may_change {
            h2 { "Edit" }
            form.stacked method="post" action=(url(&format!("/about/{id}"))) {
                label { "Notes (Markdown)" textarea name="notes" rows="10" maxlength=(MAX_NOTE_BYTES) { (notes) } }
                label { "Tags (separated by commas)" input name="tags" value=(entry.tags().join(", ")); }
                label.check { input type="checkbox" name="archived" value="true" checked[*archived]; " Archived" }
                button { "Save" }
            }
        } @else {
            p.hint { a href=(url(&format!("/login?next=%2Fabout%2F{id}"))) { "Log in" } " to write notes." }
        }
    };
    Ok(render_page(&viewer, &name, None, &content))
}

/// Returns the distinct tags in a text.
fn parse_tags(text: &str) -> Result<Vec<String>, Error> {
    let mut tags: Vec<String> = Vec::new();
    for tag in text.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
        if let Some(problem) = label_problem(tag) {
            return Err(Error::BadRequest(format!("a tag {problem}")));
        }
        if !tags.iter().any(|known| known == tag) {
            tags.push(tag.to_owned());
        }
    }
    if tags.len() > MAX_TAGS {
        return Err(Error::BadRequest(format!("an experiment may have at most {MAX_TAGS} tags")));
    }
    Ok(tags)
}

/// `POST /about/{id}`: stores the notes about an experiment.
pub(super) async fn save(
    State(home): State<Home>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Redirect, PageRefusal> {
    let fields: Vec<(String, String)> =
        read_user_form(&home.0.log_in.authenticator, request).await?;
    let field = |name: &str| {
        fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    };
    let (id, entry) = find_experiment(&home, &id).await?;
    let written = parse_tags(field("tags").unwrap_or_default())?;
    let same = entry.annotation.tags.is_none() && written == entry.summary.tags;
    let notes = field("notes").unwrap_or_default().replace("\r\n", "\n");
    if notes.len() > MAX_NOTE_BYTES {
        return Err(
            Error::BadRequest(format!("a note may have at most {MAX_NOTE_BYTES} bytes")).into()
        );
    }
    let archived = field("archived") == Some("true");
    let annotation = Annotation { archived, notes, tags: (!same).then_some(written) };
    annotate(&home, &id, annotation).await?;
    Ok(Redirect::to(&url(&format!("/about/{id}"))))
}

/// `POST /archive`: adds the selected experiments to the archive, or removes them from it.
pub(super) async fn archive(
    State(home): State<Home>,
    request: Request,
) -> Result<Redirect, PageRefusal> {
    let fields: Vec<(String, String)> =
        read_user_form(&home.0.log_in.authenticator, request).await?;
    let archived = fields.iter().any(|(name, value)| name == "archived" && value == "true");
    for (_, id) in fields.iter().filter(|(name, _)| name == "experiment") {
        let id =
            ExperimentId::new(id.as_str()).map_err(|error| Error::BadRequest(error.to_string()))?;
        let annotation = home.0.catalog.annotation(&id).await;
        annotate(&home, &id, Annotation { archived, ..annotation }).await?;
    }
    Ok(Redirect::to(&url(if archived { "/" } else { "/?archived=true" })))
}

async fn annotate(home: &Home, id: &ExperimentId, annotation: Annotation) -> Result<(), Error> {
    let noted = home.0.catalog.annotate(id, annotation).await;
    noted.map_err(|error| Error::Unwritable(format!("cannot write the notes: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_separated_by_commas() {
        assert_eq!(parse_tags(" a, b c ,,a").unwrap(), ["a", "b c"]);
        assert!(parse_tags(&"x".repeat(61)).is_err());
    }
}
