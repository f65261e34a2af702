//! Chat templates: Jinja as the Python libraries run it.
//!
//! Source: `apply_chat_template` of `transformers` 4.57: blocks trimmed, `raise_exception`, `strftime_now`, a `tojson` that
//! does not escape HTML, `{% generation %}` marks that render as their content.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as JinjaValue};
use minijinja::{Environment, Error, ErrorKind, context};
use serde::Serialize;
use serde_json::{Map, Value};

use super::strftime::format_date;
use super::tokenizer::Chat;
use super::{ChatTemplateFile, Model, ModelError};

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// Instructions one rendering may take; a runaway loop ends here.
const FUEL: u64 = 5_000_000;

/// A model's chat template, compiled.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token`, ... of the tokenizer's config.
    special_tokens: Map<String, Value>,
}

/// Why a chat has no prompt.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChatTemplateError {
    /// The model has none.
    #[error("the model has no chat template; use /v1/completions, or a model directory with chat_template.jinja")]
    NoTemplate,
    /// The template refuses the messages.
    #[error("the chat template fails: {0}")]
    Failed(String),
    /// `continue_final_message` cannot be done.
    #[error("the final message cannot be continued: its content does not appear in the prompt")]
    NothingToContinue,
}

impl ChatTemplate {
    /// Reads the template of a model: `chat_template.jinja`, `chat_template.json`, or that of `tokenizer_config.json`.
    /// `None`: it has none.
    ///
    /// # Errors
    /// [`ModelError::Broken`] for a template that is no Jinja.
    pub fn load(model: &Model) -> Result<Option<Self>, ModelError> {
        let config_path = &model.files.tokenizer_config.path;
        let config: Map<String, Value> = read_json(config_path)?;
        let (path, templates) = match &model.files.chat_template {
            Some(ChatTemplateFile::Jinja(file)) => {
                let text = std::fs::read_to_string(&file.path);
                let text = text.map_err(|source| ModelError::unreadable(&file.path, source))?;
                (&file.path, vec![(DEFAULT.to_owned(), text)])
            }
            Some(ChatTemplateFile::Json(file)) => {
                let object: Map<String, Value> = read_json(&file.path)?;
                (&file.path, named_templates(object.get("chat_template")))
            }
            None => (config_path, named_templates(config.get("chat_template"))),
        };
        if !templates.iter().any(|(name, _)| name == DEFAULT) {
            return Ok(None);
        }
        let special = config.iter().filter(|(key, _)| key.ends_with("_token"));
        let special = special.filter_map(|(key, value)| {
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((key.clone(), Value::from(text)))
        });
        let special_tokens = special.collect();
        let environment = environment(templates).map_err(|error| ModelError::broken(path, &describe(&error)))?;
        Ok(Some(Self {
            environment,
            special_tokens,
        }))
    }

    /// The prompt of a chat.
    ///
    /// # Errors
    /// [`ChatTemplateError::Failed`] with the template's words; [`ChatTemplateError::NothingToContinue`].
    pub fn render(&self, chat: &Chat<'_>) -> Result<String, ChatTemplateError> {
        let name = if chat.tools.is_some() && self.environment.get_template(TOOL_USE).is_ok() {
            TOOL_USE
        } else {
            DEFAULT
        };
        let failed = |error: Error| ChatTemplateError::Failed(describe(&error));
        let template = self.environment.get_template(name).map_err(failed)?;
        let own = context! {
            messages => jinja(chat.messages),
            tools => chat.tools.map(jinja),
            add_generation_prompt => chat.add_generation_prompt && !chat.continue_final_message,
        };
        let variables = chat.variables.map(jinja).unwrap_or_default();
        let variables = context! { ..own, ..variables, ..jinja(&self.special_tokens) };
        let mut prompt = template.render(variables).map_err(failed)?;
        if chat.continue_final_message {
            let content = chat
                .messages
                .last()
                .and_then(|message| message.get("content")?.as_str());
            let content = content.map(str::trim).filter(|content| !content.is_empty());
            let end = content.and_then(|content| Some(prompt.rfind(content)? + content.len()));
            prompt.truncate(end.ok_or(ChatTemplateError::NothingToContinue)?);
        }
        Ok(prompt)
    }
}

fn jinja<T: Serialize + ?Sized>(value: &T) -> JinjaValue {
    JinjaValue::from(Serde(value))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &std::path::Path) -> Result<T, ModelError> {
    let bytes = std::fs::read(path).map_err(|source| ModelError::unreadable(path, source))?;
    serde_json::from_slice(&bytes).map_err(|error| ModelError::broken(path, &error))
}

/// One template, or a list of `{"name", "template"}`.
fn named_templates(value: Option<&Value>) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match value {
        Some(Value::String(template)) => vec![(DEFAULT.to_owned(), template.clone())],
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(|entry| Some((text(entry.get("name")?)?, text(entry.get("template")?)?)))
            .collect(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => Vec::new(),
    }
}

fn environment(templates: Vec<(String, String)>) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", |value: &JinjaValue, options: Kwargs| to_json(value, &options));
    environment.add_function("raise_exception", |message: String| -> Result<JinjaValue, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: &str| {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |span| span.as_secs());
        format_date(format, now)
    });
    for (name, template) in templates {
        environment.add_template_owned(name, without_generation_marks(&template))?;
    }
    Ok(environment)
}

/// Turns `{% generation %}` into a block that Jinja knows.
fn without_generation_marks(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find("{%") {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let word = tag
            .trim_start_matches("{%")
            .trim_end_matches("%}")
            .trim_matches(['-', '+', ' ', '\t', '\n']);
        match word {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}

fn describe(error: &Error) -> String {
    let text = error.detail().map_or_else(|| error.to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{text} (line {line})"),
        None => text,
    }
}

/// JSON as Python writes it.
fn to_json(value: &JinjaValue, options: &Kwargs) -> Result<JinjaValue, Error> {
    let indent: Option<usize> = options.get("indent")?;
    for known in ["ensure_ascii", "sort_keys", "separators"] {
        // Known to Python's filter; templates set them to what holds here anyway.
        let _: Option<JinjaValue> = options.get(known)?;
    }
    options.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        Some(width) => {
            let spaces = " ".repeat(width.min(16));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced)),
    };
    let failed = |error: String| Error::new(ErrorKind::BadSerialization, error);
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(out)
        .map(JinjaValue::from_safe_string)
        .map_err(|error| failed(error.to_string()))
}

/// One line with a space after `,` and `:`.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }
    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(template: &str, messages: &[Value]) -> Result<String, ChatTemplateError> {
        let environment = environment(vec![(DEFAULT.to_owned(), template.to_owned())]).unwrap();
        let special_tokens = json!({"bos_token": "<s>"}).as_object().unwrap().clone();
        ChatTemplate {
            environment,
            special_tokens,
        }
        .render(&Chat::new(messages))
    }

    #[test]
    fn python_idioms_work() {
        let template = "{{ bos_token }}{%- for m in messages if m['role'].startswith('u') %}\n    \
                        {% set ns = namespace(x=m.get('content', '').strip()) %}\n[{{ ns.x.split('-')[-1] }}]\n{% endfor %}";
        let messages = [
            json!({"role": "user", "content": " a-b "}),
            json!({"role": "tool", "content": "x"}),
        ];
        assert_eq!(render(template, &messages).unwrap(), "<s>[b]\n");
    }

    #[test]
    fn json_looks_as_from_python_and_is_not_escaped() {
        let messages = [json!({"role": "user", "content": "<a> & 'b'"})];
        assert_eq!(
            render("{{ messages[0] | tojson }}", &messages).unwrap(),
            r#"{"content": "<a> & 'b'", "role": "user"}"#
        );
        assert!(
            render("{{ messages | tojson(indent=2) }}", &messages)
                .unwrap()
                .contains("\n  {\n    \"content\"")
        );
    }

    #[test]
    fn a_template_may_refuse() {
        let error = render("{{ raise_exception('roles must alternate') }}", &[]).unwrap_err();
        assert!(error.to_string().contains("roles must alternate"), "{error}");
    }

    #[test]
    fn a_runaway_template_ends() {
        let template = "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}";
        assert!(matches!(render(template, &[]), Err(ChatTemplateError::Failed(_))));
    }

    #[test]
    fn generation_marks_render_as_their_content() {
        let template = "a{% generation %}b{%- endgeneration -%} c{% if true %}d{% endif %}";
        assert_eq!(render(template, &[]).unwrap(), "abcd");
    }

    #[test]
    fn a_message_can_be_continued() {
        let environment = environment(vec![(
            DEFAULT.to_owned(),
            "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}".to_owned(),
        )]);
        let template = ChatTemplate {
            environment: environment.unwrap(),
            special_tokens: Map::new(),
        };
        let messages = [
            json!({"role": "user", "content": "x"}),
            json!({"role": "assistant", "content": "so far "}),
        ];
        let chat = Chat {
            continue_final_message: true,
            ..Chat::new(&messages)
        };
        assert_eq!(template.render(&chat).unwrap(), "[x][so far");
        let empty = [json!({"role": "assistant", "content": ""})];
        let chat = Chat {
            messages: &empty,
            ..chat
        };
        assert_eq!(template.render(&chat), Err(ChatTemplateError::NothingToContinue));
    }
}
