//! The terminal view: samples the fleet on a thread of its own, draws what fits on the screen.
//!
//! A look costs the fleet one pass over its gauges, however busy it is; a frame costs the rows that are visible. So neither
//! depends on how many requests run, and a slow fleet does not make the keyboard slow.

use std::io::IsTerminal;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

use super::client::{Client, ClientError};
use super::{CtlError, pretty, say};
use crate::actors::row::WorkerRow;

/// How long a frame waits for a key.
const KEY_WAIT: Duration = Duration::from_millis(50);

/// Samples in the sparklines.
const HISTORY: usize = 240;

/// What one look at the fleet brought.
#[derive(Debug, Clone)]
struct Sample {
    at_ms: f64,
    fleet: Value,
    rows: Vec<WorkerRow>,
}

fn look(client: &Client) -> Result<Sample, ClientError> {
    let mut fleet = client.get("/v1/fleet", &[("workers", "true".to_owned())])?;
    let rows = serde_json::from_value(fleet["workers"].take()).map_err(|error| ClientError::NotAFleet {
        url: client.url().to_owned(),
        reason: error.to_string(),
    })?;
    Ok(Sample {
        at_ms: fleet["at_ms"].as_f64().unwrap_or(0.0),
        fleet,
        rows,
    })
}

/// Column that rows are sorted by, most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SortBy {
    Position,
    Load,
    Blocks,
    Tokens,
    State,
}

/// State of the view.
struct View {
    url: String,
    sample: Option<Sample>,
    before: Option<Sample>,
    error: Option<String>,
    sort: SortBy,
    top_row: usize,
    tokens: Vec<u64>,
    streams: Vec<u64>,
}

impl View {
    fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            sample: None,
            before: None,
            error: None,
            sort: SortBy::Position,
            top_row: 0,
            tokens: Vec::new(),
            streams: Vec::new(),
        }
    }

    fn take(&mut self, looked: Result<Sample, String>) {
        match looked {
            Ok(sample) => {
                self.error = None;
                self.before = self.sample.replace(sample);
                let rate = self.rate("tokens_total");
                push(&mut self.tokens, rate);
                let streams = self.figure("open_streams");
                push(&mut self.streams, streams);
            }
            Err(error) => self.error = Some(error),
        }
    }

    fn figure(&self, key: &str) -> u64 {
        self.sample
            .as_ref()
            .and_then(|sample| sample.fleet[key].as_u64())
            .unwrap_or(0)
    }

    fn seconds(&self) -> Option<f64> {
        let (now, before) = (self.sample.as_ref()?, self.before.as_ref()?);
        Some((now.at_ms - before.at_ms) / 1e3).filter(|seconds| *seconds > 0.0)
    }

    /// Growth of a counter per second since the look before.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    fn rate(&self, key: &str) -> u64 {
        let (Some(seconds), Some(before)) = (self.seconds(), &self.before) else {
            return 0;
        };
        let grown = self.figure(key).saturating_sub(before.fleet[key].as_u64().unwrap_or(0));
        (grown as f64 / seconds) as u64
    }

    /// Tokens per second of a worker.
    #[allow(clippy::cast_precision_loss)]
    fn worker_rate(&self, row: &WorkerRow) -> f64 {
        let (Some(seconds), Some(before)) = (self.seconds(), &self.before) else {
            return 0.0;
        };
        // Positions do not change while a fleet runs.
        let index = row.path.strip_prefix('w').and_then(|n| n.parse::<usize>().ok());
        let earlier = index.and_then(|index| before.rows.get(index));
        let grown = earlier.map_or(0, |earlier| row.tokens_total.saturating_sub(earlier.tokens_total));
        grown as f64 / seconds
    }

    fn sorted(&self) -> Vec<&WorkerRow> {
        let Some(sample) = &self.sample else { return Vec::new() };
        let mut rows: Vec<&WorkerRow> = sample.rows.iter().collect();
        match self.sort {
            SortBy::Position => {}
            SortBy::Load => rows.sort_by_key(|row| std::cmp::Reverse(row.running + row.waiting)),
            SortBy::Blocks => rows.sort_by_key(|row| std::cmp::Reverse(row.active_blocks)),
            SortBy::Tokens => rows.sort_by(|a, b| self.worker_rate(b).total_cmp(&self.worker_rate(a))),
            SortBy::State => rows.sort_by_key(|row| (row.state == "ready", std::cmp::Reverse(row.faults.len()))),
        }
        rows
    }

    /// Whether to go on.
    // There are many keys, and most mean nothing.
    #[allow(clippy::wildcard_enum_match_arm)]
    fn key(&mut self, code: KeyCode, control: bool, page: usize) -> bool {
        let last = self
            .sample
            .as_ref()
            .map_or(0, |sample| sample.rows.len().saturating_sub(1));
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if control => return false,
            KeyCode::Down | KeyCode::Char('j') => self.top_row += 1,
            KeyCode::Up | KeyCode::Char('k') => self.top_row = self.top_row.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.top_row += page,
            KeyCode::PageUp => self.top_row = self.top_row.saturating_sub(page),
            KeyCode::Home => self.top_row = 0,
            KeyCode::End => self.top_row = last,
            KeyCode::Char('n') => self.sort = SortBy::Position,
            KeyCode::Char('l') => self.sort = SortBy::Load,
            KeyCode::Char('b') => self.sort = SortBy::Blocks,
            KeyCode::Char('t') => self.sort = SortBy::Tokens,
            KeyCode::Char('s') => self.sort = SortBy::State,
            _ => {}
        }
        self.top_row = self.top_row.min(last);
        true
    }

    fn summary(&self) -> Vec<Line<'static>> {
        let states = self
            .sample
            .as_ref()
            .and_then(|sample| sample.fleet["workers_by_state"].as_object());
        let states = states
            .into_iter()
            .flatten()
            .map(|(state, many)| format!("{many} {state}"));
        let total = self.figure("prompt_tokens_total").max(1);
        let late = self
            .sample
            .as_ref()
            .and_then(|sample| sample.fleet["lateness"]["p99_ms"].as_f64());
        let mut lines = vec![
            Line::from(format!("{}  {}", self.url, states.collect::<Vec<_>>().join(", "))),
            Line::from(format!(
                "{} req/s  {} tok/s  {} streams  {} running  {} waiting",
                self.rate("requests_total"),
                self.rate("tokens_total"),
                self.figure("open_streams"),
                self.figure("running"),
                self.figure("waiting"),
            )),
            Line::from(format!(
                "blocks {}/{} used, {} cached   prefix hits {}%   restarts {}   lateness p99 {:.1} ms",
                self.figure("active_blocks"),
                self.figure("total_blocks"),
                self.figure("cached_blocks"),
                self.figure("cached_tokens_total") * 100 / total,
                self.figure("restarts"),
                late.unwrap_or(0.0),
            )),
        ];
        if let Some(error) = &self.error {
            lines.push(Line::from(Span::styled(error.clone(), Style::new().fg(Color::Red))));
        }
        lines
    }

    fn draw(&self, frame: &mut Frame<'_>) -> usize {
        let [head, sparks, body, foot] = Layout::vertical([
            Constraint::Length(4),
            Constraint::Length(4),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(self.summary()), head);
        let [left, right] = Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(sparks);
        let spark = |title: &'static str, data: &[u64], width: u16| {
            let from = data.len().saturating_sub(usize::from(width));
            let block = Block::bordered().title(title);
            Sparkline::default().block(block).data(data[from..].to_vec())
        };
        frame.render_widget(spark("tokens/s", &self.tokens, left.width.saturating_sub(2)), left);
        frame.render_widget(spark("streams", &self.streams, right.width.saturating_sub(2)), right);
        let visible = usize::from(body.height.saturating_sub(1));
        let rows = self.sorted();
        let rows = rows.iter().skip(self.top_row).take(visible).map(|row| self.row(row));
        let widths = [8, 12, 9, 8, 8, 8, 16, 9, 9, 6, 20].map(Constraint::Length);
        let names = [
            "worker", "group", "state", "streams", "running", "waiting", "blocks", "cached", "tok/s", "hits", "faults",
        ];
        let header = Row::new(names).style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_widget(Table::new(rows, widths).header(header), body);
        let keys = "q quit  arrows scroll  sort: n position, l load, b blocks, t tokens, s state";
        frame.render_widget(Paragraph::new(keys), foot);
        visible
    }

    fn row(&self, row: &WorkerRow) -> Row<'static> {
        let color = match row.state.as_str() {
            "ready" if row.faults.is_empty() => Color::Reset,
            "ready" => Color::Yellow,
            "dead" => Color::Red,
            _ => Color::Cyan,
        };
        let faults: Vec<String> = row.faults.iter().map(ToString::to_string).collect();
        let hits = row.cached_tokens_total * 100 / row.prompt_tokens_total.max(1);
        let cells = [
            row.path.clone(),
            row.group.clone(),
            row.state.clone(),
            row.open_streams.to_string(),
            row.running.to_string(),
            row.waiting.to_string(),
            format!("{}/{}", row.active_blocks, row.total_blocks),
            row.cached_blocks.to_string(),
            format!("{:.0}", self.worker_rate(row)),
            format!("{hits}%"),
            faults.join(" "),
        ];
        Row::new(cells.map(Cell::from)).style(Style::new().fg(color))
    }
}

fn push(history: &mut Vec<u64>, value: u64) {
    if history.len() == HISTORY {
        history.remove(0);
    }
    history.push(value);
}

/// Looks at the fleet again and again until nobody wants to know any more.
fn sample(client: &Client, every: Duration, samples: &Sender<Result<Sample, String>>, stop: &Receiver<()>) {
    let ticks = crossbeam_channel::tick(every);
    loop {
        let looked = look(client).map_err(|error| error.to_string());
        if samples.send(looked).is_err() {
            return;
        }
        crossbeam_channel::select! {
            recv(ticks) -> _ => {}
            recv(stop) -> _ => return,
        }
    }
}

pub(super) fn run(client: Client, every_ms: u64, once: bool, json: bool) -> Result<(), CtlError> {
    if once || json || !std::io::stdout().is_terminal() {
        let sample = look(&client)?;
        if json {
            let mut value = sample.fleet;
            value["workers"] = serde_json::to_value(&sample.rows).unwrap_or_default();
            return say(&pretty(&value));
        }
        let mut view = View::new(client.url());
        view.take(Ok(sample));
        return say(&as_text(&view));
    }
    let (samples, looked) = bounded(1);
    let (stopper, stop) = bounded(0);
    let mut view = View::new(client.url());
    let every = Duration::from_millis(every_ms);
    let watcher = std::thread::Builder::new()
        .name("gf-top".into())
        .spawn(move || sample(&client, every, &samples, &stop))?;
    let mut terminal = ratatui::try_init()?;
    let outcome = follow(&mut view, &looked, |view| {
        let mut page = 0;
        terminal.draw(|frame| page = view.draw(frame))?;
        Ok(page)
    });
    ratatui::restore();
    drop((stopper, looked));
    // It may be in the middle of a look; the process does not wait for it.
    drop(watcher);
    outcome
}

/// Draws until a key ends it: on news, and after keys.
fn follow(
    view: &mut View,
    looked: &Receiver<Result<Sample, String>>,
    mut draw: impl FnMut(&View) -> std::io::Result<usize>,
) -> Result<(), CtlError> {
    let mut page = draw(view)?;
    loop {
        let mut news = false;
        while let Ok(sample) = looked.try_recv() {
            view.take(sample);
            news = true;
        }
        if event::poll(KEY_WAIT)? {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                if !view.key(key.code, control, page) {
                    return Ok(());
                }
            }
            news = true;
        }
        if news {
            page = draw(view)?;
        }
    }
}

/// The whole view as text.
fn as_text(view: &View) -> String {
    let rows = view.sample.as_ref().map_or(0, |sample| sample.rows.len());
    let height = u16::try_from(rows).unwrap_or(u16::MAX - 16).min(u16::MAX - 16) + 11;
    let backend = ratatui::backend::TestBackend::new(132, height);
    let mut terminal = ratatui::Terminal::new(backend).unwrap_or_else(|error| match error {});
    terminal
        .draw(|frame| {
            view.draw(frame);
        })
        .unwrap_or_else(|error| match error {});
    let buffer = terminal.backend().buffer();
    let width = usize::from(buffer.area.width);
    let lines = buffer.content().chunks(width).map(|cells| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn sample(workers: u32, at_ms: f64) -> Sample {
        let row = |id: u32| WorkerRow {
            path: format!("w{id}"),
            state: if id == 3 { "dead" } else { "ready" }.to_owned(),
            running: id % 7,
            tokens_total: u64::from(id) * 100 + at_ms as u64,
            ..WorkerRow::default()
        };
        Sample {
            at_ms,
            fleet: json!({"tokens_total": at_ms as u64 * 10, "workers_by_state": {"ready": workers - 1, "dead": 1}}),
            rows: (0..workers).map(row).collect(),
        }
    }

    #[test]
    fn a_view_of_a_thousand_workers_shows_rates_and_the_rows_that_fit() {
        let mut view = View::new("http://fleet");
        view.take(Ok(sample(1000, 1000.0)));
        view.take(Ok(sample(1000, 2000.0)));
        assert_eq!(view.rate("tokens_total"), 10_000);
        let backend = ratatui::backend::TestBackend::new(120, 30);
        let mut terminal = ratatui::Terminal::new(backend).unwrap();
        let mut page = 0;
        terminal.draw(|frame| page = view.draw(frame)).unwrap();
        assert_eq!(page, 20);
        let shown = terminal.backend().to_string();
        assert!(shown.contains("999 ready") && shown.contains("10000 tok/s"), "{shown}");
        assert!(shown.contains("w19 ") && !shown.contains("w20 "), "{shown}");
        assert!(view.key(KeyCode::End, false, page));
        terminal.draw(|frame| page = view.draw(frame)).unwrap();
        assert!(terminal.backend().to_string().contains("w999"));
        assert!(view.key(KeyCode::Char('s'), false, page) && view.key(KeyCode::Home, false, page));
        assert_eq!(view.sorted()[0].path, "w3", "what is not well comes first");
        assert!(!view.key(KeyCode::Char('q'), false, page));
    }

    #[test]
    fn a_fleet_that_is_gone_is_told_and_the_last_figures_stay() {
        let mut view = View::new("http://fleet");
        view.take(Ok(sample(4, 1000.0)));
        view.take(Err("cannot reach the fleet".to_owned()));
        let text = as_text(&view);
        assert!(text.contains("cannot reach the fleet") && text.contains("w3"), "{text}");
    }
}
