//! State of the terminal view and how it is drawn.

use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};

use super::feed::{Names, News, Sample};
use crate::actors::row::Columns;

/// Samples in the sparklines.
const HISTORY: usize = 240;

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
pub(super) struct View {
    url: String,
    names: Names,
    sample: Option<Sample>,
    before: Option<Sample>,
    error: Option<String>,
    sort: SortBy,
    top_row: usize,
    tokens: Vec<u64>,
    streams: Vec<u64>,
}

/// A number of a list that should have it.
fn at<T: Copy + Default>(list: &[T], position: usize) -> T {
    list.get(position).copied().unwrap_or_default()
}

impl View {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            names: Names::default(),
            sample: None,
            before: None,
            error: None,
            sort: SortBy::Position,
            top_row: 0,
            tokens: Vec::new(),
            streams: Vec::new(),
        }
    }

    pub(super) fn take(&mut self, news: News) {
        match news {
            News::Names(names) => {
                self.names = names;
                // Perhaps of another fleet at the same address: its counters have begun anew.
                (self.sample, self.before) = (None, None);
            }
            News::Sample(sample) => {
                self.error = None;
                self.before = self.sample.replace(*sample);
                let rate = self.rate("tokens_total");
                push(&mut self.tokens, rate);
                let streams = self.figure("open_streams");
                push(&mut self.streams, streams);
            }
            News::Gone(why) => self.error = Some(why),
        }
    }

    /// The fleet has said nothing for so long; whether that is news.
    pub(super) fn silent_for(&mut self, span: Duration) -> bool {
        let text = format!("the fleet has been silent for {} s", span.as_secs());
        let is_news = self.error.is_none()
            || self
                .error
                .as_ref()
                .is_some_and(|said| *said != text && said.contains("silent"));
        if is_news {
            self.error = Some(text);
        }
        is_news
    }

    fn figure(&self, key: &str) -> u64 {
        self.sample
            .as_ref()
            .and_then(|sample| sample.fleet[key].as_u64())
            .unwrap_or(0)
    }

    /// Seconds between the last two samples.
    fn seconds(&self) -> Option<f64> {
        let (now, before) = (self.sample.as_ref()?, self.before.as_ref()?);
        Some((now.at_ms - before.at_ms) / 1e3).filter(|seconds| *seconds > 0.0)
    }

    /// Growth of a counter per second since the sample before.
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
    fn worker_rate(&self, position: usize) -> f64 {
        let (Some(seconds), Some(now), Some(before)) = (self.seconds(), &self.sample, &self.before) else {
            return 0.0;
        };
        let tokens = |sample: &Sample| at(&sample.columns.tokens_total, position);
        tokens(now).saturating_sub(tokens(before)) as f64 / seconds
    }

    fn health(&self, columns: &Columns, position: usize) -> &str {
        let word = columns.health.get(position).map(|code| usize::from(*code));
        word.and_then(|word| self.names.health.get(word))
            .map_or("?", String::as_str)
    }

    fn workers(&self) -> usize {
        self.sample.as_ref().map_or(0, |sample| sample.columns.health.len())
    }

    /// Positions in the order in which they are shown.
    fn sorted(&self) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..self.workers()).collect();
        let Some(Sample { columns, .. }) = &self.sample else {
            return rows;
        };
        match self.sort {
            SortBy::Position => {}
            SortBy::Load => {
                rows.sort_by_key(|row| std::cmp::Reverse(at(&columns.running, *row) + at(&columns.waiting, *row)));
            }
            SortBy::Blocks => rows.sort_by_key(|row| std::cmp::Reverse(at(&columns.active_blocks, *row))),
            SortBy::Tokens => rows.sort_by(|a, b| self.worker_rate(*b).total_cmp(&self.worker_rate(*a))),
            SortBy::State => rows.sort_by_key(|row| {
                let faults = columns.faults.get(row).map_or(0, Vec::len);
                (self.health(columns, *row) == "ready", std::cmp::Reverse(faults))
            }),
        }
        rows
    }

    /// Whether to go on.
    // There are many keys, and most mean nothing.
    #[allow(clippy::wildcard_enum_match_arm)]
    pub(super) fn key(&mut self, code: KeyCode, control: bool, page: usize) -> bool {
        let last = self.workers().saturating_sub(1);
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
            .and_then(|sample| sample.fleet["workers_by_health"].as_object());
        let states = states
            .into_iter()
            .flatten()
            .map(|(state, many)| format!("{many} {state}"));
        let total = self.figure("prompt_tokens_total").max(1);
        let ms = |path: &str| {
            let fleet = self.sample.as_ref().map(|sample| &sample.fleet);
            let value = fleet
                .and_then(|fleet| fleet.pointer(path))
                .and_then(serde_json::Value::as_f64);
            format!("{:.1}", value.unwrap_or(0.0))
        };
        let mut lines = vec![
            Line::from(format!("{}  {}", self.url, states.collect::<Vec<_>>().join(", "))),
            Line::from(format!(
                "{} req/s  {} tok/s  {} streams  {} running  {} waiting   TTFT {}/{} ms  ITL {}/{} ms (p50/p99)",
                self.rate("requests_total"),
                self.rate("tokens_total"),
                self.figure("open_streams"),
                self.figure("running"),
                self.figure("waiting"),
                ms("/latency/ttft/p50_ms"),
                ms("/latency/ttft/p99_ms"),
                ms("/latency/itl/p50_ms"),
                ms("/latency/itl/p99_ms"),
            )),
            Line::from(format!(
                "blocks {}/{} used, {} cached   prefix hits {}%   restarts {}   lateness p99 {} ms",
                self.figure("active_blocks"),
                self.figure("total_blocks"),
                self.figure("cached_blocks"),
                self.figure("cached_tokens_total") * 100 / total,
                self.figure("restarts"),
                ms("/lateness/p99_ms"),
            )),
        ];
        if let Some(error) = &self.error {
            lines.push(Line::from(Span::styled(error.clone(), Style::new().fg(Color::Red))));
        }
        lines
    }

    /// Draws it; how many workers fit.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) -> usize {
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
        let rows = rows.iter().skip(self.top_row).take(visible).map(|row| self.row(*row));
        let widths = [8, 12, 9, 8, 8, 8, 16, 9, 9, 6, 20].map(Constraint::Length);
        let names = [
            "worker", "group", "state", "streams", "running", "waiting", "blocks", "cached", "tok/s", "hits", "faults",
        ];
        let header = Row::new(names).style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_widget(Table::new(rows, widths).header(header), body);
        let kib = self.sample.as_ref().map_or(0, |sample| sample.bytes / 1024);
        let keys = format!(
            "q quit  arrows scroll  sort: n position, l load, b blocks, t tokens, s state   {kib} KiB per look"
        );
        frame.render_widget(Paragraph::new(keys), foot);
        visible
    }

    fn row(&self, position: usize) -> Row<'static> {
        let Some(Sample { columns, .. }) = &self.sample else {
            return Row::default();
        };
        let state = self.health(columns, position);
        let faults = columns.faults.get(&position).map(Vec::as_slice).unwrap_or_default();
        let color = match state {
            "ready" if faults.is_empty() => Color::Reset,
            "ready" => Color::Yellow,
            "dead" => Color::Red,
            "hung" => Color::Magenta,
            _ => Color::Cyan,
        };
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let name = self.names.workers.get(position).cloned().unwrap_or_default();
        let prompts = at(&columns.prompt_tokens_total, position).max(1);
        let cells = [
            name.path,
            name.group,
            state.to_owned(),
            at(&columns.open_streams, position).to_string(),
            at(&columns.running, position).to_string(),
            at(&columns.waiting, position).to_string(),
            format!(
                "{}/{}",
                at(&columns.active_blocks, position),
                at(&columns.total_blocks, position)
            ),
            at(&columns.cached_blocks, position).to_string(),
            format!("{:.0}", self.worker_rate(position)),
            format!("{}%", at(&columns.cached_tokens_total, position) * 100 / prompts),
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

/// The whole view as text.
pub(super) fn as_text(view: &View) -> String {
    let height = u16::try_from(view.workers())
        .unwrap_or(u16::MAX - 16)
        .min(u16::MAX - 16)
        + 11;
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

    use super::super::feed::Name;
    use super::*;

    fn names(workers: u32) -> News {
        let name = |id: u32| Name {
            path: format!("w{id}"),
            group: "all".to_owned(),
        };
        News::Names(Names {
            workers: (0..workers).map(name).collect(),
            health: vec!["ready".to_owned(), "dead".to_owned()],
        })
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn sample(workers: u32, at_ms: f64) -> News {
        let columns = Columns {
            health: (0..workers).map(|id| u8::from(id == 3)).collect(),
            running: (0..workers).map(|id| id % 7).collect(),
            tokens_total: (0..workers).map(|id| u64::from(id) * 100 + at_ms as u64).collect(),
            ..Columns::default()
        };
        let fleet = json!({"tokens_total": at_ms as u64 * 10, "workers_by_health": {"ready": workers - 1, "dead": 1}});
        News::Sample(Box::new(Sample {
            at_ms,
            fleet,
            columns,
            bytes: 2048,
        }))
    }

    #[test]
    fn a_view_of_a_thousand_workers_shows_rates_and_the_rows_that_fit() {
        let mut view = View::new("http://fleet");
        view.take(names(1000));
        view.take(sample(1000, 1000.0));
        view.take(sample(1000, 2000.0));
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
        assert_eq!(view.sorted()[0], 3, "what is not well comes first");
        assert!(!view.key(KeyCode::Char('q'), false, page));
    }

    #[test]
    fn a_fleet_that_is_gone_or_silent_is_told_and_the_last_figures_stay() {
        let mut view = View::new("http://fleet");
        view.take(names(4));
        view.take(sample(4, 1000.0));
        assert!(view.silent_for(Duration::from_secs(6)) && !view.silent_for(Duration::from_secs(6)));
        assert!(as_text(&view).contains("silent for 6 s"));
        view.take(News::Gone("cannot reach the fleet".to_owned()));
        assert!(!view.silent_for(Duration::from_secs(7)), "there is a better reason");
        let text = as_text(&view);
        assert!(text.contains("cannot reach the fleet") && text.contains("w3"), "{text}");
        view.take(sample(4, 2000.0));
        assert!(!as_text(&view).contains("cannot reach"));
    }
}
