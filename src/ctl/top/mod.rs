//! The terminal view: follows the fleet on a thread of its own, draws what fits on the screen.
//!
//! A sample costs the fleet one pass over its gauges, however busy it is; a frame costs the rows that are visible. So neither
//! depends on how many requests run, and a slow fleet does not make the keyboard slow.

mod feed;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use ratatui::crossterm::event::{self, Event, KeyEventKind, KeyModifiers};

use self::feed::News;
use self::view::{View, as_text};
use super::client::Client;
use super::{CtlError, pretty, say};

/// How long a frame waits for a key.
const KEY_WAIT: Duration = Duration::from_millis(50);

/// Samples that may be late before the fleet counts as silent.
const LATE_SAMPLES: u32 = 5;

pub(super) fn run(client: Client, every_ms: u64, once: bool, json: bool) -> Result<(), CtlError> {
    if json {
        return say(&pretty(&client.get("/v1/fleet", &[("workers", "rows".to_owned())])?));
    }
    let mut view = View::new(client.url());
    if once || !std::io::stdout().is_terminal() {
        // Rates are those between two samples.
        feed::follow_once(&client, 100, Some(2), |news| {
            view.take(news);
            true
        })?;
        return say(&as_text(&view));
    }
    let (sender, news) = bounded(2);
    let (stopper, stop) = bounded(0);
    let watcher = std::thread::Builder::new()
        .name("gf-top".into())
        .spawn(move || feed::follow(&client, every_ms, &sender, &stop))?;
    let mut terminal = ratatui::try_init()?;
    let patience = Duration::from_millis(every_ms) * LATE_SAMPLES;
    let outcome = follow(&mut view, &news, patience, |view| {
        let mut page = 0;
        terminal.draw(|frame| page = view.draw(frame))?;
        Ok(page)
    });
    ratatui::restore();
    drop((stopper, news));
    // It may wait for the fleet; the process does not wait for it.
    drop(watcher);
    outcome
}

/// Draws until a key ends it: on news, and after keys.
fn follow(
    view: &mut View,
    news: &Receiver<News>,
    patience: Duration,
    mut draw: impl FnMut(&View) -> std::io::Result<usize>,
) -> Result<(), CtlError> {
    let mut page = draw(view)?;
    let mut heard = Instant::now();
    loop {
        let mut changed = false;
        while let Ok(told) = news.try_recv() {
            view.take(told);
            heard = Instant::now();
            changed = true;
        }
        if heard.elapsed() > patience {
            changed |= view.silent_for(heard.elapsed());
        }
        if event::poll(KEY_WAIT)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let control = key.modifiers.contains(KeyModifiers::CONTROL);
                    if !view.key(key.code, control, page) {
                        return Ok(());
                    }
                    changed = true;
                }
                Event::Resize(..) => changed = true,
                Event::Key(_) | Event::Mouse(_) | Event::Paste(_) | Event::FocusGained | Event::FocusLost => {}
            }
        }
        if changed {
            page = draw(view)?;
        }
    }
}
