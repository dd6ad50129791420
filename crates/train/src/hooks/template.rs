//! Names of files from templates such as `epoch_{epoch}_loss_{val/loss:.2f}`.

use std::fmt::Write;

use tenterhook_hooks::{Metrics, nearest};
use tenterhook_record::name::file_safe;

/// A parsed template: text with fields in braces. `{{` and `}}` are braces.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Field { name: String, format: Format },
}

/// `[0][width][.precision][f|e|d]`, as Python and Rust have it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Format {
    zeros: bool,
    width: usize,
    precision: Option<usize>,
    style: Option<char>,
}

/// Wider numbers and more digits than this are a mistake.
const WIDEST: usize = 64;
/// A longer template than this is a mistake.
const LONGEST: usize = 4096;

impl Template {
    /// Reads a template; mistakes are named with the place they are at.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("the template has {} bytes, at most {LONGEST} are allowed", text.len()));
        }
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let brace = &rest[at..at + 1];
            let after = &rest[at + 1..];
            let place = text.len() - rest.len() + at;
            if let Some(after) = after.strip_prefix(brace) {
                plain.push_str(brace);
                rest = after;
            } else if brace == "}" {
                return Err(format!("`}}` at {place} closes nothing; write `}}}}` for a brace"));
            } else {
                let end = after.find(['{', '}']).filter(|end| after[*end..].starts_with('}'));
                let end =
                    end.ok_or_else(|| format!("`{{` at {place} is not closed; write `{{{{` for a brace"))?;
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(field(&after[..end])?);
                rest = &after[end + 1..];
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { parts })
    }

    /// The name for these values, safe to be a file's. With `named`, a field stands as `name=value`.
    pub(crate) fn render(
        &self,
        epoch: u64,
        step: u64,
        metrics: &Metrics,
        named: bool,
    ) -> Result<String, String> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Field { name, format } => {
                    let value = match name.as_str() {
                        "epoch" => format.count(epoch),
                        "step" => format.count(step),
                        _ => format.number(*metrics.get(name).ok_or_else(|| unknown(name, metrics))?),
                    };
                    if named {
                        text.push_str(name);
                        text.push('=');
                    }
                    text.push_str(&value);
                }
            }
        }
        Ok(file_safe(&text))
    }
}

fn field(text: &str) -> Result<Part, String> {
    // Names may hold a colon, formats never do.
    let (name, format) = text.rsplit_once(':').unwrap_or((text, ""));
    if name.is_empty() {
        return Err(format!("`{{{text}}}` names no field; `epoch`, `step` and metrics are fields"));
    }
    let format = Format::parse(format).ok_or_else(|| {
        format!("`{format}` in `{{{text}}}` is no format; formats are like `.2f`, `.1e`, `04d` or `08`")
    })?;
    Ok(Part::Field { name: name.to_string(), format })
}

fn unknown(name: &str, metrics: &Metrics) -> String {
    let fields = metrics.keys().map(String::as_str).chain(["epoch", "step"]);
    let near: Vec<String> = nearest(name, fields, 5).iter().map(|name| format!("`{name}`")).collect();
    let hint = if near.is_empty() { String::new() } else { format!("; nearest: {}", near.join(", ")) };
    format!("the file name wants `{name}`, which is no metric at this moment{hint}")
}

impl Format {
    fn parse(text: &str) -> Option<Self> {
        let style = text.chars().last().filter(|c| c.is_ascii_alphabetic());
        let text = style.map_or(text, |style| &text[..text.len() - style.len_utf8()]);
        let zeros = text.starts_with('0');
        let (width, precision) = match text.split_once('.') {
            Some((width, precision)) => (width, Some(small(precision)?)),
            None => (text, None),
        };
        let width = if width.is_empty() { 0 } else { small(width)? };
        let known = matches!(style, None | Some('f' | 'e')) || style == Some('d') && precision.is_none();
        known.then_some(Self { zeros, width, precision, style })
    }

    fn count(&self, value: u64) -> String {
        match (self.precision, self.style) {
            (None, None | Some('d')) => self.pad(value.to_string()),
            _ => self.number(value as f64),
        }
    }

    fn number(&self, value: f64) -> String {
        if !value.is_finite() {
            return self.pad(value.to_string().to_lowercase());
        }
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = match (self.style, self.precision) {
            (Some('e'), Some(digits)) => write!(text, "{value:.digits$e}"),
            (Some('e'), None) => write!(text, "{value:e}"),
            (Some('d'), _) => write!(text, "{value:.0}"),
            (_, Some(digits)) => write!(text, "{value:.digits$}"),
            (Some(_), None) => write!(text, "{value:.6}"),
            (None, None) => write!(text, "{value}"),
        };
        self.pad(text)
    }

    fn pad(&self, text: String) -> String {
        let missing = self.width.saturating_sub(text.chars().count());
        let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
        match self.zeros && digits.starts_with(|c: char| c.is_ascii_digit()) {
            true => format!("{sign}{}{digits}", "0".repeat(missing)),
            false => format!("{}{text}", " ".repeat(missing)),
        }
    }
}

fn small(digits: &str) -> Option<usize> {
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|number| all_digits && *number <= WIDEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tenterhook_record::name::check_run_name;

    fn metrics() -> Metrics {
        [("loss", 1.5), ("val/loss", 0.12345), ("a:b", 2.0), ("bad", f64::NAN), ("low", -1.5)]
            .into_iter()
            .map(|(name, value)| (name.to_string(), value))
            .collect()
    }

    fn check(template: &str, named: bool) -> Result<String, String> {
        Template::parse(template)?.render(3, 120, &metrics(), named)
    }

    #[test]
    fn fields_are_written_in_their_format() {
        for (template, plain, named) in [
            ("best-{step:08}", "best-00000120", "best-step=00000120"),
            ("epoch_{epoch}_loss_{val/loss:.2f}", "epoch_3_loss_0.12", "epoch_epoch=3_loss_val_loss=0.12"),
            ("{epoch:04d}", "0003", "epoch=0003"),
            ("{epoch:.1f}", "3.0", "epoch=3.0"),
            ("{val/loss:.2e}", "1.23e-1", "val_loss=1.23e-1"),
            ("{val/loss}", "0.12345", "val_loss=0.12345"),
            ("{val/loss:f}", "0.123450", "val_loss=0.123450"),
            ("{low:08.3f}", "-001.500", "low=-001.500"),
            ("{loss:d}", "2", "loss=2"),
            ("{loss:6.1f}", "___1.5", "loss=___1.5"),
            ("{a:b:.1f}", "2.0", "a_b=2.0"),
            ("{bad:05.2f}", "__nan", "bad=__nan"),
            ("{{x}}{epoch}", "_x_3", "_x_epoch=3"),
            ("plain", "plain", "plain"),
        ] {
            assert_eq!(check(template, false).as_deref(), Ok(plain), "{template}");
            assert_eq!(check(template, true).as_deref(), Ok(named), "{template}");
        }
    }

    #[test]
    fn mistakes_are_found_when_the_template_is_read() {
        for (template, message) in [
            ("a{epoch", "`{` at 1 is not closed"),
            ("ab}c", "`}` at 2 closes nothing"),
            ("{a{b}}", "`{` at 0 is not closed"),
            ("{}", "names no field"),
            ("{:.2f}", "names no field"),
            ("{loss:q}", "`q` in `{loss:q}` is no format"),
            ("{loss:.f}", "is no format"),
            ("{loss:99999999999999999999}", "is no format"),
            ("{loss:.65f}", "is no format"),
            ("{loss:.2d}", "is no format"),
            ("{loss:+3}", "is no format"),
        ] {
            let error = Template::parse(template).unwrap_err();
            assert!(error.contains(message), "{template}: {error}");
        }
        assert!(Template::parse(&"x".repeat(4097)).unwrap_err().contains("4097 bytes"));
    }

    #[test]
    fn unknown_fields_are_named_with_the_near_ones() {
        let error = check("{val/los:.2f}", true).unwrap_err();
        assert!(error.contains("wants `val/los`") && error.contains("nearest: `val/loss`"), "{error}");
    }

    proptest! {
        #[test]
        fn p31_p32_nothing_panics_and_every_result_is_one_safe_name(
            template in prop_oneof!["\\PC*", "[{}:.0-9fed/a-c\u{0}\u{202e}é]{0,40}"], epoch: u64, step: u64, value: f64, named: bool,
        ) {
            let metrics: Metrics = ["a", "b", "/", "é"].into_iter().map(|name| (name.to_string(), value)).collect();
            if let Ok(parsed) = Template::parse(&template)
                && let Ok(name) = parsed.render(epoch, step, &metrics, named)
            {
                prop_assert_eq!(check_run_name(&name), Ok(()), "{:?}", name);
                prop_assert_eq!(file_safe(&name), name, "stays as it is");
            }
        }
    }
}
