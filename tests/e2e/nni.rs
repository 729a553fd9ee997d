//! NNI's unchanged software with these programs: client, Python package, pages, dispatcher, SDK and keeper.

mod client;
mod dispatcher;
mod keeper;
mod node;
mod pages;
mod registered;
mod sdk;
