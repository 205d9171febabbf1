//! The end of a run: why things failed or were skipped, a row per step, and the closing line.

use std::time::Duration;

use crate::outcome::Outcome;

/// A step that ran.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    pub(crate) time: Duration,
}

/// Everything that is printed after the last step; the last line is `N passed, N failed, N skipped`.
pub(crate) fn render(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max("total".len());
    let mut total = Outcome::default();
    let mut text = notes(rows);
    text += &format!("\n{:width$}  passed  failed  skipped  not applicable    time\n", "step");
    for row in rows {
        total.add(&row.outcome);
        text += &line(width, &row.name, &row.outcome, row.time);
    }
    let time = rows.iter().map(|row| row.time).sum();
    text += &line(width, "total", &total, time);
    text +=
        &format!("\n{} passed, {} failed, {} skipped\n", total.passed, total.failed, total.skipped);
    text
}

fn line(width: usize, name: &str, outcome: &Outcome, time: Duration) -> String {
    let Outcome { passed, failed, skipped, not_applicable, .. } = outcome;
    let time = time.as_secs_f64();
    format!(
        "{name:width$}  {passed:6}  {failed:6}  {skipped:7}  {not_applicable:14}  {time:5.1}s\n"
    )
}

fn notes(rows: &[Row]) -> String {
    let notes = rows.iter().flat_map(|row| row.outcome.notes.iter().map(move |note| (row, note)));
    notes.map(|(row, note)| format!("{}: {note}\n", row.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_stands_alone() {
        let row = |name: &str, outcome| Row {
            name: name.into(),
            outcome,
            time: Duration::from_millis(1500),
        };
        let rows = [
            row("unit", Outcome { passed: 7, ..Outcome::default() }),
            row("loom", Outcome::skip("why")),
        ];
        let text = render(&rows);
        assert_eq!(text.lines().last(), Some("7 passed, 0 failed, 1 skipped"));
        assert!(text.contains("loom: skipped: why\n"), "{text}");
        assert!(
            text.contains("\nunit        7       0        0               0    1.5s\n"),
            "{text}"
        );
    }
}
