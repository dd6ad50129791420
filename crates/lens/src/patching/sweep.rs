//! Which places a sweep patches, one after the other.

use serde::{Deserialize, Serialize};
use tenterhook_hooks::{Selector, Site};

use super::grid::{Frame, Method};
use super::hooks::{Axes, Part};
use super::runs::Start;
use crate::error::LensError;
use crate::language_model::LanguageModel;
use crate::tokens::place;

/// How large a part of an activation is patched at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// One position: a row per point, a column per position.
    Position,
    /// One head, at all positions or at one: a row per point, a column per head.
    Head {
        /// The position; none for all of them.
        position: Option<i64>,
    },
    /// One head at one position: a row per head, a column per position.
    HeadPosition,
    /// All of it: a row per point, one column.
    Layer,
}

/// Which points are patched, and how large a part of each.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// What was asked for.
    pub name: String,
    /// The points.
    pub points: Selector,
    /// The parts; by default single heads where there are heads, else single positions.
    pub by: Option<By>,
    /// At most so many patched sequences go through the model together, where that changes no bit.
    pub batch_size: usize,
}

impl Sweep {
    /// Of a short name, such as `resid_pre`, `attn_out` or `z`, for that point of every block; or of points by name or glob.
    pub fn of(name: &str) -> Self {
        const IN_BLOCK: [&str; 5] = ["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"];
        const IN_ATTENTION: [&str; 9] =
            ["q", "k", "v", "z", "pattern", "attn_scores", "rot_q", "rot_k", "result"];
        let points = match name {
            name if IN_BLOCK.contains(&name) => format!("blocks.*.hook_{name}"),
            name if IN_ATTENTION.contains(&name) => format!("blocks.*.attn.hook_{name}"),
            name => name.to_string(),
        };
        Self { name: name.to_string(), points: points.into(), by: None, batch_size: 8 }
    }

    /// The same with parts of this size.
    pub fn by(self, by: By) -> Self {
        Self { by: Some(by), ..self }
    }

    /// The points in this model, checked.
    pub(super) fn plan(&self, lm: &LanguageModel, length: usize) -> Result<Plan, LensError> {
        if self.batch_size == 0 {
            return Err(LensError::BadInput("`batch_size` is 0, it must be at least 1".to_string()));
        }
        let table = lm.hooks().points();
        let config = lm.model().config();
        let mut points = Vec::new();
        for found in self.points.resolve(table, Site::Forward)? {
            let point = table.point(found.point);
            let refuse =
                |why: &str| LensError::BadInput(format!("`{}` cannot be patched: {why}", point.name));
            if !point.writable {
                return Err(refuse("it is read-only"));
            }
            let axes = Axes::of(&point.axes);
            if axes.position.is_none() {
                return Err(refuse(&format!("it has no positions, its axes are `{}`", point.axes)));
            }
            let heads = match point.axes.contains("kv_head") {
                _ if axes.head.is_none() => 0,
                true => config.kv_heads,
                false => config.heads,
            };
            points.push(SweptPoint {
                name: point.name.clone(),
                block: point.block,
                start: Start::of(table, found.point),
                axes,
                heads,
                costly: point.on_demand,
            });
        }
        let by = self.by.unwrap_or(match points.iter().all(|point| point.heads > 0) {
            true => By::Head { position: None },
            false => By::Position,
        });
        Plan::new(self.name.clone(), points, by, length)
    }
}

/// A point of the model that is patched.
pub(super) struct SweptPoint {
    pub(super) name: String,
    block: Option<usize>,
    pub(super) start: Start,
    pub(super) axes: Axes,
    heads: usize,
    pub(super) costly: bool,
}

/// Every cell of a sweep: points and parts.
pub(super) struct Plan {
    sweep: String,
    pub(super) points: Vec<SweptPoint>,
    rows: Vec<String>,
    column_axis: &'static str,
    columns: Vec<String>,
    /// Per point its parts, in the order of rows and columns.
    pub(super) parts: Vec<Vec<Part>>,
}

impl Plan {
    fn new(sweep: String, points: Vec<SweptPoint>, by: By, length: usize) -> Result<Self, LensError> {
        let heads = points.first().map_or(0, |point| point.heads);
        if matches!(by, By::Head { .. } | By::HeadPosition) {
            let odd = points.iter().find(|point| point.heads == 0 || point.heads != heads);
            if let Some(odd) = odd {
                return Err(LensError::BadInput(match odd.heads {
                    0 => format!("`{}` has no heads: sweep it by position", odd.name),
                    _ => format!(
                        "`{}` has another number of heads than `{}`: sweep them one after the other",
                        odd.name, points[0].name
                    ),
                }));
            }
        }
        let numbers = |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>();
        let position = |position| Part { position: Some(position), head: None };
        let (column_axis, columns, parts): (_, _, Vec<Part>) = match by {
            By::Position => ("position", numbers(length), (0..length).map(position).collect()),
            By::Head { position } => {
                let position = position.map(|at| place(at, length)).transpose()?;
                let head = |head| Part { position, head: Some(head) };
                ("head", numbers(heads), (0..heads).map(head).collect())
            }
            By::HeadPosition => {
                let parts = (0..heads).flat_map(|head| {
                    (0..length).map(move |position| Part { position: Some(position), head: Some(head) })
                });
                ("position", numbers(length), parts.collect())
            }
            By::Layer => ("layer", vec!["all".to_string()], vec![Part::default()]),
        };
        // A block's number says enough where every block is there once.
        let blocks: Vec<_> = points.iter().map(|point| point.block).collect();
        let by_block = blocks.iter().all(Option::is_some) && blocks.windows(2).all(|two| two[0] < two[1]);
        let label = |point: &SweptPoint| match point.block {
            Some(block) if by_block => block.to_string(),
            _ => point.name.clone(),
        };
        let rows = match by {
            By::HeadPosition => {
                let of_point = |point| (0..heads).map(move |head| format!("{}.{head}", label(point)));
                points.iter().flat_map(of_point).collect()
            }
            _ => points.iter().map(label).collect(),
        };
        let parts = points.iter().map(|_| parts.clone()).collect();
        Ok(Self { sweep, points, rows, column_axis, columns, parts })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.points.iter().map(|point| point.name.clone()).collect()
    }

    pub(super) fn cells(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }

    pub(super) fn into_frame(self, method: Method) -> Frame {
        let Self { sweep, rows, column_axis, columns, .. } = self;
        Frame { method, sweep, rows, column_axis: column_axis.to_string(), columns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};
    use tenterhook_models::{Transformer, config::TransformerConfig};

    fn plan(sweep: &Sweep) -> Result<Plan, String> {
        let config = TransformerConfig::gpt2(20, 8, 8, 2, 4);
        let model = Transformer::init(config, 1, DType::F32, &Device::Cpu).unwrap();
        sweep.plan(&LanguageModel::new(model).unwrap(), 3).map_err(|error| error.to_string())
    }

    #[test]
    fn short_names_stand_for_every_block() {
        let stream = plan(&Sweep::of("resid_mid")).unwrap();
        assert_eq!(stream.names(), ["blocks.0.hook_resid_mid", "blocks.1.hook_resid_mid"]);
        assert_eq!((stream.rows.join(" "), stream.columns.join(" ")), ("0 1".into(), "0 1 2".into()));
        let heads = plan(&Sweep::of("z")).unwrap();
        assert_eq!((heads.column_axis, heads.columns.len(), heads.cells()), ("head", 4, 8));
        let both = plan(&Sweep::of("pattern").by(By::HeadPosition)).unwrap();
        assert_eq!((both.rows[5].as_str(), both.columns.len(), both.cells()), ("1.1", 3, 24));
        let named = plan(&Sweep::of("blocks.0.hook_*_out")).unwrap();
        assert_eq!(named.rows, ["blocks.0.hook_attn_out", "blocks.0.hook_mlp_out"]);
    }

    #[test]
    fn a_run_begins_where_its_patch_does() {
        let starts = |name: &str| -> Vec<Start> {
            plan(&Sweep::of(name).by(By::Position)).unwrap().points.iter().map(|point| point.start).collect()
        };
        assert_eq!(starts("hook_embed"), [Start::Embed]);
        assert_eq!(starts("z"), [Start::Block(0), Start::Block(1)]);
        assert_eq!(starts("transformer.h.*.attn.c_attn.hook_out"), [Start::Block(0), Start::Block(1)]);
        assert_eq!(starts("transformer.h.1"), [Start::After(1)]);
        assert_eq!(starts("ln_final.hook_normalized"), [Start::Unembed]);
    }

    #[test]
    fn what_cannot_be_swept_is_told() {
        let told = |sweep: &Sweep| plan(sweep).err().unwrap();
        assert!(told(&Sweep::of("resid_middle")).contains("no point matches"));
        let no_heads = told(&Sweep::of("attn_out").by(By::Head { position: None }));
        assert_eq!(no_heads, "`blocks.0.hook_attn_out` has no heads: sweep it by position");
        let far = told(&Sweep::of("z").by(By::Head { position: Some(3) }));
        assert_eq!(
            far,
            "position 3 is not in the text: it has 3 tokens, so positions are 0 to 2 or -3 to -1"
        );
    }
}
