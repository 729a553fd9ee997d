//! A full-screen terminal: its size, keys without Enter, and the restoration of its former state at the end. The caller
//! draws the content.

use std::io::{self, IsTerminal as _, Read as _, Stdin, Stdout, Write as _};
use std::os::fd::AsFd as _;

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// The sequences that begin a drawing: alternate screen, no cursor, no line wrapping (private modes of xterm and DEC).
const BEGIN_DRAWING: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l";
/// The sequences that undo [`BEGIN_DRAWING`].
const END_DRAWING: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";
/// The sequence that moves the cursor to the upper left corner (ECMA-48, CUP).
const CURSOR_HOME: &str = "\u{1b}[H";
/// The sequence that clears the rest of the line (ECMA-48, EL).
const CLEAR_REST_OF_LINE: &str = "\u{1b}[K";
/// The sequence that clears the rest of the screen (ECMA-48, ED).
const CLEAR_REST_OF_SCREEN: &str = "\u{1b}[J";
/// Ctrl-C as a key: without the terminal's signal keys, it sends no signal.
const CONTROL_C: char = '\u{3}';
/// Ctrl-D as a key.
const CONTROL_D: char = '\u{4}';

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) struct Size {
    /// The number of characters in a line.
    pub(in crate::cli) columns: usize,
    /// The number of lines.
    pub(in crate::cli) rows: usize,
}

/// The user's action at the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum ScreenAction {
    /// A key was pressed.
    Pressed(Key),
    /// The size of the terminal changed.
    Resized,
}

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Key {
    /// Ctrl-C or Ctrl-D was pressed, or the terminal was closed.
    Interrupt,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    Char(char),
}

/// The terminal while the program draws on it. Dropping it restores the terminal.
pub(in crate::cli) struct Screen {
    stdout: Stdout,
    keys: Option<Keys>,
    resized: Signal,
}

/// The keys from standard input, if it is a terminal. Dropping them restores its former modes.
struct Keys {
    stdin: Stdin,
    former_modes: Termios,
    pressed: mpsc::Receiver<Key>,
}

impl Screen {
    /// Takes the terminal at standard output. Returns `None` if standard output is not a terminal that supports
    /// drawing.
    pub(in crate::cli) fn acquire() -> io::Result<Option<Self>> {
        let stdout = io::stdout();
        let dumb = std::env::var_os("TERM").is_none_or(|kind| kind.is_empty() || kind == "dumb");
        if dumb || !stdout.is_terminal() {
            return Ok(None);
        }
        let resized = signal(SignalKind::window_change())?;
        let keys = Keys::acquire()?;
        let mut screen = Self { stdout, keys, resized };
        screen.write(BEGIN_DRAWING)?;
        Ok(Some(screen))
    }

    /// Returns the current size, or 80 by 24 if the terminal does not report its size.
    pub(in crate::cli) fn size(&self) -> Size {
        let size = tcgetwinsize(self.stdout.as_fd()).ok();
        let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or(Size { columns: 80, rows: 24 }, |size| Size {
            columns: usize::from(size.ws_col),
            rows: usize::from(size.ws_row),
        })
    }

    /// Replaces the content of the screen with `lines`.
    pub(in crate::cli) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let lines = lines.join(&format!("{CLEAR_REST_OF_LINE}\n"));
        self.write(&format!("{CURSOR_HOME}{lines}{CLEAR_REST_OF_LINE}{CLEAR_REST_OF_SCREEN}"))
    }

    /// Waits for the next action of the user. Cancel safe.
    pub(in crate::cli) async fn next_action(&mut self) -> ScreenAction {
        let pressed = async {
            match &mut self.keys {
                // A closed terminal sends no more keys.
                Some(keys) => keys.pressed.recv().await.unwrap_or(Key::Interrupt),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            key = pressed => ScreenAction::Pressed(key),
            _ = self.resized.recv() => ScreenAction::Resized,
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        let mut stdout = self.stdout.lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Ignored: the terminal may be closed.
        drop(self.write(END_DRAWING));
    }
}

impl Keys {
    /// Takes the keys from standard input. Returns `None` if it is not a terminal, or if this process is a background
    /// job, which may not read from the terminal.
    fn acquire() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() || !is_in_the_foreground(&stdin) {
            return Ok(None);
        }
        let former_modes = tcgetattr(&stdin)?;
        let mut now = former_modes.clone();
        now.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        let (sender, pressed) = mpsc::channel(64);
        tcsetattr(&stdin, OptionalActions::Now, &now)?;
        let taken = Self { stdin, former_modes, pressed };
        // The thread runs until the program exits, because a blocked read of a key cannot be cancelled.
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
            let mut bytes = [0; 64];
            loop {
                // An error means that the terminal was closed, like the end of input.
                let read = io::stdin().read(&mut bytes).unwrap_or(0);
                let mut all = parse_keys(&bytes[..read]).into_iter();
                if read == 0 || all.any(|key| sender.blocking_send(key).is_err()) {
                    break;
                }
            }
        })?;
        Ok(Some(taken))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // Ignored: the terminal may be closed.
        tcsetattr(&self.stdin, OptionalActions::Now, &self.former_modes).unwrap_or(());
    }
}

/// PURE: returns the keys in the bytes that a terminal sent. Knows xterm's sequences and skips unknown sequences.
fn parse_keys(bytes: &[u8]) -> Vec<Key> {
    const KEY_SEQUENCES: [(&str, Key); 12] = [
        ("\u{1b}[A", Key::Up),
        ("\u{1b}OA", Key::Up),
        ("\u{1b}[B", Key::Down),
        ("\u{1b}OB", Key::Down),
        ("\u{1b}[5~", Key::PageUp),
        ("\u{1b}[6~", Key::PageDown),
        ("\u{1b}[H", Key::Home),
        ("\u{1b}OH", Key::Home),
        ("\u{1b}[1~", Key::Home),
        ("\u{1b}[F", Key::End),
        ("\u{1b}OF", Key::End),
        ("\u{1b}[4~", Key::End),
    ];
    let text = String::from_utf8_lossy(bytes);
    let mut rest = text.as_ref();
    let mut found = Vec::new();
    while let Some(letter) = rest.chars().next() {
        if let Some((sequence, key)) = KEY_SEQUENCES.iter().find(|(one, _)| rest.starts_with(one)) {
            found.push(*key);
            rest = &rest[sequence.len()..];
            continue;
        }
        if let Some(unknown) = rest.strip_prefix("\u{1b}[") {
            let end = unknown.find(|letter| ('@'..='~').contains(&letter));
            rest = end.map_or("", |at| &unknown[at + 1..]);
            continue;
        }
        rest = &rest[letter.len_utf8()..];
        found.extend(match letter {
            CONTROL_C | CONTROL_D => Some(Key::Interrupt),
            '\r' | '\n' => Some(Key::Enter),
            '\u{1b}' => Some(Key::Escape),
            '\u{8}' | '\u{7f}' => Some(Key::Backspace),
            letter if letter.is_control() => None,
            letter => Some(Key::Char(letter)),
        });
    }
    found
}

fn is_in_the_foreground(stdin: &Stdin) -> bool {
    rustix::termios::tcgetpgrp(stdin).is_ok_and(|group| group == rustix::process::getpgrp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_the_bytes_of_a_terminal() {
        use Key::{Backspace, Char, Down, End, Enter, Escape, Home, Interrupt, PageDown, Up};
        let table: [(&[u8], &[Key]); 8] = [
            (b"q", &[Char('q')]),
            (b"\x1b[A\x1bOBj", &[Up, Down, Char('j')]),
            (b"\x1b[6~\r\x7f", &[PageDown, Enter, Backspace]),
            (b"\x1b[H\x1b[1~\x1bOF", &[Home, Home, End]),
            (b"\x1b", &[Escape]),
            (b"\x1b[1;5Cx\x1b[", &[Char('x')]),
            ("é\u{3}".as_bytes(), &[Char('é'), Interrupt]),
            (b"\xff\0", &[Char('\u{fffd}')]),
        ];
        for (bytes, expected) in table {
            assert_eq!(parse_keys(bytes), expected, "{bytes:?}");
        }
    }
}
