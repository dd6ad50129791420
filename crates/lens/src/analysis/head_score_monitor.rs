//! Which heads do what, measured while a model trains or runs.

use std::collections::BTreeMap;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{At, AttachError, Cx, Hook, HookResult, Mode, Point, Selector, Want};

use super::head_scores::{HeadKind, HeadScoreOptions, sums};

/// The embedding of every family: its input are the token ids.
const TOKENS: &str = "hook_embed";
/// So many passes may go on at once, on as many threads.
const PASSES: usize = 16;

/// What a [`HeadScoreMonitor`] measures, and where.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HeadScoreMonitorOptions {
    /// The attention patterns.
    pub points: Selector,
    /// The habits: "induction", "previous_token", "duplicate_token".
    pub kinds: Vec<HeadKind>,
    /// Looks only at so many texts of a batch; without it at all of them.
    pub max_texts: Option<usize>,
    /// Measures in validation too, as `val/heads/...`.
    pub validation: bool,
}

impl Default for HeadScoreMonitorOptions {
    fn default() -> Self {
        Self {
            points: "blocks.*.attn.hook_pattern".into(),
            kinds: vec![HeadKind::Induction, HeadKind::PreviousToken],
            max_texts: None,
            validation: false,
        }
    }
}

/// Logs how far every head has a habit as `heads/<habit>/L<block>H<head>`, such as `heads/induction/L1H2`: the attention that goes where the
/// habit says, averaged over the tokens for which it says something; 1 is perfect. The scores are those of
/// [`head_scores`](crate::LanguageModel::head_scores), on the tokens that pass. Padding does not count.
///
/// A batch in which no token has such a place, because none comes twice, says nothing about a habit and leaves no number.
/// Where a step or a validation has several batches, the numbers are those of the last. Of a generation the prompt is measured.
pub struct HeadScoreMonitor {
    options: HeadScoreMonitorOptions,
    /// The texts of the passes that are going on, by their numbers. The end of a pass is not heard of: the oldest make way.
    texts: BTreeMap<u64, Vec<Text>>,
}

/// One text of a batch.
struct Text {
    row: usize,
    /// The columns before it, which are padding.
    start: usize,
    length: usize,
    /// Per habit, where it looks from every token.
    targets: Vec<Vec<Vec<usize>>>,
}

impl HeadScoreMonitor {
    /// The kind's name.
    pub const KIND: &'static str = "head_scores";

    /// Options that measure nothing are an error.
    pub fn new(options: HeadScoreMonitorOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if options.kinds.is_empty() {
            problems.push("`kinds` is empty: nothing would be measured".to_string());
        }
        if options.max_texts == Some(0) {
            problems.push("`max_texts` is 0: nothing would be measured; use at least 1".to_string());
        }
        match problems.is_empty() {
            true => Ok(Self { options, texts: BTreeMap::new() }),
            false => Err(AttachError::BadOptions { kind: Self::KIND.to_string(), problems }),
        }
    }

    fn texts_of(&self, ids: &Tensor, cx: &Cx) -> HookResult<Vec<Text>> {
        let ids: Vec<Vec<u32>> = ids.to_vec2()?;
        let text = |(row, ids): (usize, &Vec<u32>)| {
            let columns = cx.rows().and_then(|rows| rows.0.get(row).cloned()).unwrap_or(0..ids.len());
            let ids = ids.get(columns.clone()).ok_or("the texts are longer than the batch")?;
            let targets = self.options.kinds.iter().map(|kind| kind.targets(ids)).collect();
            Ok(Text { row, start: columns.start, length: ids.len(), targets })
        };
        ids.iter().enumerate().take(self.options.max_texts.unwrap_or(usize::MAX)).map(text).collect()
    }

    fn log_scores(
        &self,
        block: usize,
        pattern: &Tensor,
        texts: &[Text],
        prefix: &str,
        cx: &mut Cx,
    ) -> HookResult {
        let mut found: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for text in texts {
            let own = pattern.narrow(0, text.row, 1)?;
            let own = own.narrow(2, text.start, text.length)?.narrow(3, text.start, text.length)?;
            for head in sums(block, &own, &text.targets, &HeadScoreOptions::default())? {
                let all = found.entry(head.head).or_insert_with(|| vec![0.0; head.on_target.len()]);
                all.iter_mut().zip(&head.on_target).for_each(|(all, one)| *all += one);
            }
        }
        for (i, kind) in self.options.kinds.iter().enumerate() {
            let places: usize =
                texts.iter().map(|text| text.targets[i].iter().filter(|keys| !keys.is_empty()).count()).sum();
            for (head, on_target) in found.iter().filter(|_| places > 0) {
                let name = format!("{prefix}/{}/L{block}H{head}", kind.as_str());
                cx.log(name, on_target[i] / places as f64);
            }
        }
        Ok(())
    }
}

impl Hook for HeadScoreMonitor {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn wants(&self) -> Vec<Want> {
        vec![Want::observe(TOKENS), Want::observe(self.options.points.clone())]
    }

    fn fits(&self, point: &Point) -> HookResult {
        let is_pattern = point.axes.split_whitespace().any(|axis| axis == "key_pos") && !point.masked;
        match point.name == TOKENS || is_pattern {
            true => Ok(()),
            false => {
                Err(format!("`{}` is no attention pattern, such as blocks.0.attn.hook_pattern", point.name)
                    .into())
            }
        }
    }

    fn observe(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult {
        let prefix = match cx.mode() {
            Mode::Validate if self.options.validation => "val/heads",
            Mode::Validate => return Ok(()),
            _ => "heads",
        };
        if cx.first_position() > 0 {
            return Ok(()); // further tokens of a text whose beginning went by in another pass
        }
        if at.point().name == TOKENS {
            let ids = at.input().ok_or("the embedding does not say which tokens it embeds")?;
            self.texts.insert(cx.pass_number(), self.texts_of(ids, cx)?);
            if self.texts.len() > PASSES {
                self.texts.pop_first();
            }
            return Ok(());
        }
        match self.texts.get(&cx.pass_number()) {
            Some(texts) => self.log_scores(at.point().block.unwrap_or(0), x, texts, prefix, cx),
            None => Err("the tokens of this pass are not known: it does not begin with the embedding".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use serde_json::json;
    use tenterhook_hooks::{HookRegistry, PassSetup, Report};
    use tenterhook_models::{Transformer, config::TransformerConfig};

    use super::*;
    use crate::language_model::LanguageModel;
    use crate::{InferenceOptions, PaddingSide};

    fn model() -> LanguageModel {
        let config = TransformerConfig::gpt2(11, 16, 8, 2, 2);
        LanguageModel::new(Transformer::init(config, 42, DType::F32, &Device::Cpu).unwrap()).unwrap()
    }

    fn attached(lm: &LanguageModel, options: serde_json::Value) {
        let mut spec = json!({"kind": "head_scores", "on_error": "abort"});
        spec.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let mut registry = HookRegistry::new();
        crate::analysis::register_kinds(&mut registry).unwrap();
        registry.attach(lm.hooks(), &spec).unwrap();
    }

    fn measured(lm: &LanguageModel, texts: &[Vec<u32>]) -> Report {
        let batch = Tensor::new(texts.to_vec(), &Device::Cpu).unwrap();
        lm.forward(&batch).unwrap().1
    }

    #[test]
    fn the_scores_are_those_of_the_analysis() {
        let lm = model();
        let texts = lm.repeated_random_tokens(3, 7, 0, Some(false)).unwrap();
        let expected = lm.head_scores(&texts, &HeadKind::ALL).unwrap();
        let all: Vec<&str> = HeadKind::ALL.iter().map(|kind| kind.as_str()).collect();
        attached(&lm, json!({ "kinds": all }));
        let metrics = measured(&lm, &texts).metrics;
        assert_eq!(metrics.len(), 3 * 2 * 2);
        for kind in &expected.kinds {
            for (block, heads) in kind.scores.iter().enumerate() {
                for (head, score) in heads.iter().enumerate() {
                    let name = format!("heads/{}/L{block}H{head}", kind.kind.as_str());
                    assert!((metrics[&name] - score).abs() < 1e-6, "{name}: {} {score}", metrics[&name]);
                }
            }
        }
    }

    #[test]
    fn options_decide_where_and_what_is_measured() {
        let lm = model();
        attached(
            &lm,
            json!({"points": "blocks.1.attn.hook_pattern", "max_texts": 1, "kinds": ["induction"]}),
        );
        let texts = vec![vec![1, 2, 1, 2], vec![3, 3, 3, 3]];
        let first = measured(&lm, &texts).metrics;
        let names: Vec<&String> = first.keys().collect();
        assert_eq!(names, ["heads/induction/L1H0", "heads/induction/L1H1"]);
        assert_eq!(first, measured(&lm, &texts[..1]).metrics, "the second text is not looked at");
        let unique = measured(&lm, &[vec![1, 2, 3, 4]]);
        assert!(unique.metrics.is_empty() && unique.errors.is_empty(), "no token comes twice: {unique:?}");
    }

    #[test]
    fn validation_is_measured_when_it_is_asked_for() {
        for (validation, expected) in [(false, 0), (true, 2)] {
            let lm = model();
            attached(
                &lm,
                json!({"points": "blocks.0.attn.hook_pattern", "kinds": ["induction"], "validation": validation}),
            );
            let pass = lm.hooks().pass(PassSetup { mode: Mode::Validate, ..PassSetup::eval(0) });
            lm.model().forward(&lm.batch_of(&[5, 6, 5]).unwrap(), &pass).unwrap();
            let metrics = pass.report().metrics;
            assert_eq!(
                metrics.keys().filter(|name| name.starts_with("val/heads/induction/L0")).count(),
                expected
            );
            assert_eq!(metrics.len(), expected);
        }
    }

    #[test]
    fn padding_changes_no_score() {
        let text = vec![4, 5, 6, 4, 5, 6];
        let lm = model();
        attached(&lm, json!({}));
        let alone = measured(&lm, std::slice::from_ref(&text)).metrics;
        for side in [PaddingSide::Left, PaddingSide::Right] {
            // The other text is longer, so that the first is padded; it is not looked at.
            let lm = model();
            attached(&lm, json!({"max_texts": 1}));
            let options = InferenceOptions { padding: side, ..InferenceOptions::default() };
            let padded =
                lm.infer_tokens(vec![text.clone(), vec![1, 2, 3, 7, 8, 9, 10, 0]], &options).unwrap();
            for (name, score) in &padded.report.metrics {
                assert!((alone[name] - score).abs() < 1e-6, "{side:?} {name}: {} {score}", alone[name]);
            }
            assert_eq!(padded.report.metrics.len(), alone.len());
        }
    }

    #[test]
    fn what_would_measure_nothing_is_refused() {
        let new = |json| {
            HeadScoreMonitor::new(serde_json::from_value(json).unwrap()).err().map(|error| error.to_string())
        };
        let error = new(json!({"kinds": [], "max_texts": 0})).unwrap();
        assert!(error.contains("`kinds` is empty") && error.contains("`max_texts` is 0"), "{error}");
        let hook = HeadScoreMonitor::new(HeadScoreMonitorOptions {
            points: "blocks.0.attn.hook_attn_scores".into(),
            ..Default::default()
        });
        let error = model().hooks().register(hook.unwrap()).unwrap_err().to_string();
        assert!(error.contains("is no attention pattern"), "{error}");
    }
}
