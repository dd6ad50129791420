//! Cutting edges of attention.

use candle_core::{D, Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{
    At, AttachError, Cx, Hook, HookResult, Part, Places, Point, Positions, Refused, Selector, Want,
};

use super::in_full;

/// An edge of attention: the query's position and the key's.
pub type Edge = (i64, i64);

/// Which edges a [`Knockout`] cuts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KnockoutOptions {
    /// Attention scores, where the other keys get what is cut off, or patterns, where it is lost.
    #[serde(default = "all_scores")]
    pub points: Selector,
    /// Only these heads.
    #[serde(default)]
    pub heads: Option<Vec<usize>>,
    /// The positions that attend, one or a list; without any, all.
    #[serde(default)]
    pub queries: Option<Positions>,
    /// The positions that are attended to; without any, all.
    #[serde(default)]
    #[schemars(extend("examples" = [0]))]
    pub keys: Option<Positions>,
    /// Single edges, `[[query, key], ...]`, in place of `queries` and `keys`.
    #[serde(default)]
    pub edges: Option<Vec<Edge>>,
    /// The share of the attention that is cut off: 1 is all of it.
    #[serde(default = "in_full")]
    pub strength: f64,
}

fn all_scores() -> Selector {
    "blocks.*.attn.hook_attn_scores".into()
}

impl Default for KnockoutOptions {
    fn default() -> Self {
        Self {
            points: all_scores(),
            heads: None,
            queries: None,
            keys: None,
            edges: None,
            strength: in_full(),
        }
    }
}

/// Cuts edges of attention: who attends to whom.
pub struct Knockout {
    options: KnockoutOptions,
}

/// Cuts these edges in all blocks and heads; [`Knockout::new`] has more choices.
pub fn knockout(edges: impl Into<Vec<Edge>>) -> Result<Knockout, AttachError> {
    Knockout::new(KnockoutOptions { edges: Some(edges.into()), ..KnockoutOptions::default() })
}

impl Knockout {
    /// The kind's name.
    pub const KIND: &'static str = "knockout";

    /// Options that cut nothing, or everything, are an error.
    pub fn new(options: KnockoutOptions) -> Result<Self, AttachError> {
        let mut problems = Self::part(&options).problems();
        let by_lists = options.queries.is_some() || options.keys.is_some();
        if by_lists == options.edges.is_some() {
            problems.push("give `edges`, or `queries` and `keys`, or one of the two".to_string());
        }
        let lists = [&options.queries, &options.keys].into_iter().flatten();
        if lists.map(|list| list.0.len()).chain(options.edges.iter().map(Vec::len)).any(|count| count == 0) {
            problems.push("an empty list cuts nothing".to_string());
        }
        if !(0.0..=1.0).contains(&options.strength) {
            problems.push(format!("`strength` is {}, it must be between 0 and 1", options.strength));
        }
        match problems.is_empty() {
            true => Ok(Self { options }),
            false => Err(AttachError::BadOptions { kind: Self::KIND.to_string(), problems }),
        }
    }

    fn part(options: &KnockoutOptions) -> Part {
        Part { heads: options.heads.clone(), ..Part::default() }
    }

    /// 1 at the edges that are cut, `[batch, 1, query, key]`.
    fn cut(&self, at: &At, x: &Tensor, cx: &Cx) -> HookResult<Tensor> {
        self.refuse_moving_positions(at, cx)?;
        let queries = Places::of(at, x, cx)?;
        // Keys are those of the whole text.
        let keys = Places { columns: 0..x.dim(D::Minus1)?, ..queries.clone() };
        let (count, width) = (queries.columns.len(), keys.columns.len());
        let mut cut = vec![0u8; queries.rows.len() * count * width];
        let mut mark = |row: usize, query: usize, key: usize| cut[(row * count + query) * width + key] = 1;
        let columns = |places: &Places, row: usize, list: &Option<Positions>| -> Vec<usize> {
            match list {
                Some(list) => list.0.iter().filter_map(|position| places.column(row, *position)).collect(),
                None => (0..places.columns.len()).filter(|c| places.position(row, *c).is_some()).collect(),
            }
        };
        for row in 0..queries.rows.len() {
            for (query, key) in self.options.edges.iter().flatten() {
                if let (Some(query), Some(key)) = (queries.column(row, *query), keys.column(row, *key)) {
                    mark(row, query, key);
                }
            }
            if self.options.edges.is_none() {
                let keys = columns(&keys, row, &self.options.keys);
                for query in columns(&queries, row, &self.options.queries) {
                    keys.iter().for_each(|key| mark(row, query, *key));
                }
            }
        }
        Ok(Tensor::from_vec(cut, (queries.rows.len(), 1, count, width), &Device::Cpu)?
            .to_device(x.device())?)
    }

    fn refuse_moving_positions(&self, at: &At, cx: &Cx) -> HookResult {
        let lists = [&self.options.queries, &self.options.keys].into_iter().flatten();
        let edges = self.options.edges.iter().flatten().flat_map(|(query, key)| [*query, *key]);
        let moving = lists.flat_map(|list| list.0.clone()).chain(edges).find(|position| *position < 0);
        match moving {
            Some(position) if cx.keeps_cache() && at.point().feeds_cache => Err(Box::new(Refused(format!(
                "position {position} at `{}` is another token after every new one, and keys and values that were computed with the old \
                 one are in the cache: give the position from the start, or generate without the cache (--no-cache)",
                at.name()
            )))),
            _ => Ok(()),
        }
    }
}

impl Hook for Knockout {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn wants(&self) -> Vec<Want> {
        vec![Want::edit(self.options.points.clone())]
    }

    fn fits(&self, point: &Point) -> HookResult {
        match point.axes.split_whitespace().any(|axis| axis == "key_pos") {
            true => Ok(()),
            false => {
                Err(format!("`{}` has no edges of attention: its axes are `{}`", point.name, point.axes)
                    .into())
            }
        }
    }

    fn edit(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult<Option<Tensor>> {
        let cut = self.cut(at, x, cx)?;
        if cut.flatten_all()?.max(0)?.to_scalar::<u8>()? == 0 {
            return Ok(None);
        }
        let chosen = Self::part(&self.options).choose(at, x, cx)?.and(&cut)?;
        let left = 1.0 - self.options.strength;
        if !at.point().masked {
            return chosen.put(x, &(x * left)?);
        }
        // The weight is an exponential of the score.
        let edited = chosen.put(x, &(x + left.ln())?)?;
        if let Some(edited) = &edited {
            refuse_blind_queries(x, edited, at)?;
        }
        Ok(edited)
    }
}

/// A query that sees no key at all has no pattern.
fn refuse_blind_queries(before: &Tensor, after: &Tensor, at: &At) -> HookResult {
    let blind = |x: &Tensor| -> candle_core::Result<u32> {
        let best = x.detach().max(D::Minus1)?;
        best.eq(f32::NEG_INFINITY)?.to_dtype(candle_core::DType::U32)?.sum_all()?.to_scalar::<u32>()
    };
    match blind(after)? > blind(before)? {
        true => Err(Box::new(Refused(format!(
            "every key of some query would be cut off at `{}`, so that it could attend to nothing: leave it a key (position 0 and \
             every query itself are usual), or cut the patterns, `hook_pattern`, in place of the scores",
            at.name()
        )))),
        false => Ok(()),
    }
}
