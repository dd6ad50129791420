//! Which heads are ablated, and which others for comparison.

use serde::Serialize;

use super::{Head, Scores};

/// A head with a larger induction score is called an induction head.
pub const THRESHOLD: f64 = 0.4;

/// What the induction heads are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// As many other heads of their layer, or all others where there are fewer.
    SameLayer,
    /// All heads of their layer are induction heads: the head of the layer below that attends most to the previous token.
    LayerBelow,
    /// There is nothing to compare with.
    Nothing,
}

/// The heads to ablate, and those to ablate in another trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    /// The induction heads.
    pub induction: Vec<Head>,
    /// The others.
    pub others: Vec<Head>,
    /// What the others are. Where induction heads are in several layers and not all have others, the weaker comparison.
    pub control: Control,
}

impl Groups {
    /// Chooses by the scores. Of the others of a layer those come first that are most like induction heads: the comparison is to be hard.
    pub fn choose(induction: &Scores, previous_token: &Scores) -> Self {
        let is_one = |head: Head| induction.get(head) > THRESHOLD;
        let heads: Vec<Head> = induction.0.keys().copied().filter(|head| is_one(*head)).collect();
        let (mut others, mut controls) = (Vec::new(), Vec::new());
        for block in 0..induction.blocks() {
            let count = heads.iter().filter(|head| head.block == block).count();
            if count == 0 {
                continue;
            }
            let mut rest: Vec<Head> = induction.heads_of(block).filter(|head| !is_one(*head)).collect();
            rest.sort_by(|a, b| induction.get(*b).total_cmp(&induction.get(*a)));
            let below = block.checked_sub(1).into_iter().flat_map(|below| previous_token.heads_of(below));
            let below = below
                .filter(|head| !is_one(*head))
                .max_by(|a, b| previous_token.get(*a).total_cmp(&previous_token.get(*b)));
            match (rest.is_empty(), below) {
                (false, _) => {
                    others.extend(rest.into_iter().take(count));
                    controls.push(Control::SameLayer);
                }
                (true, Some(below)) => {
                    others.push(below);
                    controls.push(Control::LayerBelow);
                }
                (true, None) => {}
            }
        }
        others.sort();
        others.dedup();
        let control = match (controls.contains(&Control::LayerBelow), controls.is_empty()) {
            (_, true) => Control::Nothing,
            (true, _) => Control::LayerBelow,
            (false, _) => Control::SameLayer,
        };
        Self { induction: heads, others, control }
    }
}

/// The hooks that ablate these heads, as they stand behind `hooks=` in `--set`: one controller per layer.
pub(super) fn ablation(heads: &[Head]) -> String {
    let mut blocks: Vec<usize> = heads.iter().map(|head| head.block).collect();
    blocks.dedup();
    let hook = |block: &usize| {
        let numbers = heads.iter().filter(|head| head.block == *block).map(|head| head.head.to_string());
        let numbers = numbers.collect::<Vec<_>>().join(", ");
        format!("{{kind = \"zero_ablate\", points = \"blocks.{block}.attn.hook_z\", heads = [{numbers}]}}")
    };
    format!("[{}]", blocks.iter().map(hook).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scores of blocks of heads.
    fn scores(blocks: &[&[f64]]) -> Scores {
        let block = |(block, heads): (usize, &&[f64])| {
            heads
                .iter()
                .enumerate()
                .map(move |(head, score)| (Head { block, head }, *score))
                .collect::<Vec<_>>()
        };
        Scores(blocks.iter().enumerate().flat_map(block).collect())
    }

    fn check(induction: &[&[f64]], chosen: &[&str], others: &[&str], control: Control) {
        let previous = scores(&[&[0.1, 0.9, 0.2, 0.3], &[0.0; 4]]);
        let groups = Groups::choose(&scores(induction), &previous);
        let names = |heads: &[Head]| heads.iter().map(Head::to_string).collect::<Vec<_>>();
        assert_eq!(
            (names(&groups.induction), names(&groups.others)),
            (
                chosen.iter().map(|name| name.to_string()).collect(),
                others.iter().map(|name| name.to_string()).collect()
            )
        );
        assert_eq!(groups.control, control);
    }

    #[test]
    fn others_are_as_many_heads_of_the_same_layer() {
        let low = &[0.0; 4][..];
        check(&[low, &[0.1, 0.9, 0.2, 0.3]], &["L1H1"], &["L1H3"], Control::SameLayer);
        check(&[low, &[0.5, 0.9, 0.2, 0.3]], &["L1H0", "L1H1"], &["L1H2", "L1H3"], Control::SameLayer);
        check(&[low, &[0.5, 0.9, 0.2, 0.6]], &["L1H0", "L1H1", "L1H3"], &["L1H2"], Control::SameLayer);
    }

    #[test]
    fn where_all_share_it_the_layer_below_is_compared_with() {
        let all = &[0.5, 0.9, 0.8, 0.6][..];
        let names = &["L1H0", "L1H1", "L1H2", "L1H3"];
        check(&[&[0.0; 4], all], names, &["L0H1"], Control::LayerBelow);
        let with_one = &["L0H1", "L1H0", "L1H1", "L1H2", "L1H3"];
        check(&[&[0.0, 0.5, 0.1, 0.2], all], with_one, &["L0H3"], Control::LayerBelow);
        check(&[&[0.5; 4], &[0.0; 4]], &["L0H0", "L0H1", "L0H2", "L0H3"], &[], Control::Nothing);
    }

    #[test]
    fn both_layers_may_have_some_or_none() {
        check(
            &[&[0.5, 0.0, 0.1, 0.2], &[0.0, 0.7, 0.1, 0.2]],
            &["L0H0", "L1H1"],
            &["L0H3", "L1H3"],
            Control::SameLayer,
        );
        check(&[&[0.4; 4], &[0.1; 4]], &[], &[], Control::Nothing);
    }

    #[test]
    fn the_hooks_that_ablate_have_a_controller_per_layer() {
        let heads = ["L0H2", "L1H0", "L1H3"].map(|name| name.parse().unwrap());
        assert_eq!(
            ablation(&heads),
            "[{kind = \"zero_ablate\", points = \"blocks.0.attn.hook_z\", heads = [2]}, \
             {kind = \"zero_ablate\", points = \"blocks.1.attn.hook_z\", heads = [0, 3]}]"
        );
    }
}
