//! NNI's unchanged software with these programs: client, Python package, pages, dispatcher, SDK and keeper.

mod client;
mod dispatcher;
mod keeper;
mod pages;
mod python_package;
mod registered_algorithms;
mod sdk;
