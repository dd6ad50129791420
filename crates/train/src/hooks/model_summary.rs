//! What the model is made of.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, Cx, Hook, HookResult, ParamInfo, TrainState};

use super::console::Console;
use super::none_of;
use super::progress::above_bar;

/// How much a [`ModelSummary`] prints.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSummaryOptions {
    /// The longest table; what does not fit is counted in a last line.
    pub max_rows: usize,
    /// Adds up the parameters whose names begin with the same so many parts; without it every parameter has its own row.
    pub depth: Option<usize>,
}

impl Default for ModelSummaryOptions {
    fn default() -> Self {
        Self { max_rows: 50, depth: None }
    }
}

/// Prints a table of the parameters when training starts: name, shape, count, and the totals.
pub struct ModelSummary {
    options: ModelSummaryOptions,
    console: Console,
}

/// A parameter, or several whose names begin alike.
struct Row {
    name: String,
    shape: String,
    count: usize,
    frozen: usize,
}

impl ModelSummary {
    /// The kind's name.
    pub const KIND: &'static str = "model_summary";

    /// A table without rows is an error.
    pub fn new(options: ModelSummaryOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if options.max_rows == 0 {
            problems.push("`max_rows` is 0, it must be at least 1".to_string());
        }
        if options.depth == Some(0) {
            problems.push("`depth` is 0, it must be at least 1".to_string());
        }
        none_of(problems, Self::KIND)?;
        Ok(Self { options, console: Console::default() })
    }

    #[cfg(test)]
    fn on(mut self, console: Console) -> Self {
        self.console = console;
        self
    }

    fn rows(&self, state: &TrainState) -> Vec<Row> {
        let one = |param: &ParamInfo| {
            let count = param.value.elem_count();
            let frozen = if state.frozen.contains(&param.name) { count } else { 0 };
            Row { name: param.name.clone(), shape: format!("{:?}", param.shape()), count, frozen }
        };
        let rows = state.params.iter().map(one);
        let Some(depth) = self.options.depth else { return rows.collect() };
        // Groups stand in the order in which the model has their first parameters.
        let (mut groups, mut places) = (Vec::<(Row, usize)>::new(), BTreeMap::new());
        for row in rows {
            let name = row.name.split('.').take(depth).collect::<Vec<_>>().join(".");
            let place = *places.entry(name.clone()).or_insert(groups.len());
            match groups.get_mut(place) {
                Some((group, members)) => {
                    group.count += row.count;
                    group.frozen += row.frozen;
                    *members += 1;
                }
                None => groups.push((Row { name, ..row }, 1)),
            }
        }
        let shaped = |(row, members): (Row, usize)| match members {
            1 => row,
            n => Row { shape: format!("{n} tensors"), ..row },
        };
        groups.into_iter().map(shaped).collect()
    }

    fn table(&self, state: &TrainState) -> Vec<String> {
        let rows = self.rows(state);
        let shown = &rows[..rows.len().min(self.options.max_rows)];
        let width = |text: fn(&Row) -> &str| shown.iter().map(|row| text(row).chars().count()).max();
        let name = width(|row| &row.name).unwrap_or(0).max(9);
        let shape = width(|row| &row.shape).unwrap_or(0).max(5);
        let mut lines = vec![format!("{:name$}  {:shape$}  {:>15}", "parameter", "shape", "count")];
        for row in shown {
            let note = match row.frozen {
                0 => String::new(),
                frozen if frozen == row.count => "  frozen".to_string(),
                frozen => format!("  {} frozen", grouped(frozen)),
            };
            lines.push(format!("{:name$}  {:shape$}  {:>15}{note}", row.name, row.shape, grouped(row.count)));
        }
        if shown.len() < rows.len() {
            let rest: usize = rows[shown.len()..].iter().map(|row| row.count).sum();
            lines.push(format!("... and {} more rows with {}", rows.len() - shown.len(), grouped(rest)));
        }
        let total: usize = rows.iter().map(|row| row.count).sum();
        let frozen: usize = rows.iter().map(|row| row.frozen).sum();
        let bytes: usize =
            state.params.iter().map(|param| param.value.elem_count() * param.dtype().size_in_bytes()).sum();
        lines.push(format!(
            "total {}: {} trainable, {} frozen; {:.2} MiB",
            grouped(total),
            grouped(total - frozen),
            grouped(frozen),
            bytes as f64 / f64::from(1 << 20)
        ));
        lines
    }
}

/// A number with its thousands apart.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl Hook for ModelSummary {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn only_on_first_rank(&self) -> bool {
        true
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        let Some(state) = cx.state() else { return Ok(()) };
        above_bar(cx, || self.table(state).iter().for_each(|line| self.console.line(line)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Tensor};
    use tenterhook_hooks::{Event, MockTrainer};

    fn printed(options: ModelSummaryOptions) -> String {
        let (console, text) = Console::buffer();
        let mut trainer = MockTrainer::new();
        let param = |(name, shape, dtype): (&str, &[usize], DType)| ParamInfo {
            name: name.to_string(),
            value: Tensor::zeros(shape, dtype, &Device::Cpu).unwrap(),
        };
        let params: [(&str, &[usize], DType); 4] = [
            ("wte.weight", &[1024, 64], DType::F32),
            ("h.0.ln.weight", &[64], DType::F32),
            ("h.0.ln.bias", &[64], DType::F32),
            ("h.1.mlp.weight", &[64, 64], DType::F64),
        ];
        trainer.state.params = params.map(param).into();
        trainer.state.frozen = vec!["h.0.ln.bias".into(), "wte.weight".into()];
        trainer.attach(ModelSummary::new(options).unwrap().on(console)).unwrap();
        trainer.fire(Event::TrainStart).unwrap();
        text.lock().unwrap().clone()
    }

    #[test]
    fn every_parameter_with_its_shape_and_the_totals() {
        assert_eq!(
            printed(ModelSummaryOptions::default()),
            "parameter       shape                 count\n\
             wte.weight      [1024, 64]           65,536  frozen\n\
             h.0.ln.weight   [64]                     64\n\
             h.0.ln.bias     [64]                     64  frozen\n\
             h.1.mlp.weight  [64, 64]              4,096\n\
             total 69,760: 4,160 trainable, 65,600 frozen; 0.28 MiB\n"
        );
    }

    #[test]
    fn depth_adds_up_and_max_rows_cuts() {
        let text = printed(ModelSummaryOptions { depth: Some(2), max_rows: 2 });
        assert_eq!(
            text,
            "parameter   shape                 count\n\
             wte.weight  [1024, 64]           65,536  frozen\n\
             h.0         2 tensors               128  64 frozen\n\
             ... and 1 more rows with 4,096\n\
             total 69,760: 4,160 trainable, 65,600 frozen; 0.28 MiB\n"
        );
    }

    #[test]
    fn wrong_options_are_all_named() {
        let error = ModelSummary::new(ModelSummaryOptions { max_rows: 0, depth: Some(0) });
        let error = error.err().unwrap().to_string();
        assert!(error.contains("`max_rows`") && error.contains("`depth`"), "{error}");
        assert_eq!([0, 999, 1000, 1234567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
