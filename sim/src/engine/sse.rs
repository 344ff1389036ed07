//! Streamed answers: server-sent events shaped as vLLM's.

use std::{
    fmt::Write as _,
    task::{Context, Poll},
};

use bytes::Bytes;

use super::{
    api::{Answer, Dialect, usage},
    body::Cut,
    failure::Fault,
    ticket::{InFlight, Progress},
};
use crate::{batch::output_token, text::push_word};

/// Text after which a frame is closed, so that a fast engine does not build whole answers in memory.
const FRAME: usize = 32 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Injected: nothing more, for ever.
    Stalled,
    /// Injected: the connection ends here.
    Cut,
    Done,
}

/// A stream of events. It reads the engine's progress when the connection takes more.
#[derive(Debug)]
pub(super) struct SseBody {
    answer: Answer,
    flight: InFlight,
    fault: Fault,
    /// Tokens sent, by choice.
    sent: Vec<u32>,
    /// Choices that had their first event.
    opened: Vec<bool>,
    events: u32,
    state: State,
}

impl SseBody {
    pub(super) fn new(answer: Answer, flight: InFlight, fault: Fault) -> SseBody {
        let choices = answer.choices();
        SseBody {
            answer,
            flight,
            fault,
            sent: vec![0; choices],
            opened: vec![false; choices],
            events: 0,
            state: State::Running,
        }
    }

    /// True once the last event is handed out.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The next events that are there.
    pub(super) fn poll_events(&mut self, cx: &Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        self.apply_fault(&mut String::new());
        match self.state {
            State::Stalled => return Poll::Pending,
            State::Cut => return Poll::Ready(Some(Err(Cut))),
            State::Done => return Poll::Ready(None),
            State::Running => {}
        }
        let sent = &self.sent;
        let progress = self.flight.poll(cx, |choices| {
            let new = choices
                .iter()
                .zip(sent)
                .any(|(progress, sent)| progress.generated > *sent);
            let all = choices.iter().all(|progress| progress.finished);
            (new || all).then(|| choices.to_vec())
        });
        let Poll::Ready(progress) = progress else {
            return Poll::Pending;
        };
        let mut text = String::with_capacity(512);
        self.render(&progress, &mut text);
        Poll::Ready(Some(Ok(Bytes::from(text))))
    }

    fn render(&mut self, progress: &[Progress], text: &mut String) {
        for (choice, now) in progress.iter().enumerate() {
            let sent = self.sent.get(choice).copied().unwrap_or(0);
            for index in sent..now.generated {
                if self.state != State::Running || text.len() >= FRAME {
                    return;
                }
                self.open(choice, text);
                if self.state != State::Running {
                    return;
                }
                self.token(choice, index, now, text);
                if let Some(sent) = self.sent.get_mut(choice) {
                    *sent = index + 1;
                }
            }
        }
        let all = progress.iter().all(|progress| progress.finished);
        if self.state == State::Running && all {
            self.close(progress, text);
        }
    }

    /// The first event of a chat's choice: its role.
    fn open(&mut self, choice: usize, text: &mut String) {
        match self.opened.get_mut(choice) {
            Some(opened) if !*opened => *opened = true,
            _ => return,
        }
        if self.answer.dialect == Dialect::Completion {
            return;
        }
        self.head(text);
        let _ = write!(
            text,
            "[{{\"index\":{choice},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\
             \"finish_reason\":null}}]"
        );
        self.running_usage(choice, 0, text);
        text.push_str(",\"prompt_token_ids\":");
        self.answer.write_prompt_ids(choice, text);
        text.push_str(",\"prompt_text\":null}\n\n");
        self.count(text);
    }

    fn token(&mut self, choice: usize, index: u32, now: &Progress, text: &mut String) {
        let token = output_token(self.answer.output_key(choice), index);
        let last = now.finished && index + 1 == now.generated;
        self.head(text);
        let _ = write!(text, "[{{\"index\":{choice},");
        let (open, end) = match self.answer.dialect {
            Dialect::Chat => ("\"delta\":{\"content\":\"", "\"}"),
            Dialect::Completion => ("\"text\":\"", "\""),
        };
        text.push_str(open);
        if index > 0 {
            text.push(' ');
        }
        push_word(token, text);
        text.push_str(end);
        text.push_str(",\"logprobs\":null,\"finish_reason\":");
        if last {
            let _ = write!(text, "\"{}\"", self.answer.finish_reason());
        } else {
            text.push_str("null");
        }
        if last || self.answer.dialect == Dialect::Completion {
            text.push_str(",\"stop_reason\":null");
        }
        if self.answer.dialect == Dialect::Completion {
            text.push_str(",\"prompt_token_ids\":");
            if index == 0 {
                self.answer.write_prompt_ids(choice, text);
            } else {
                text.push_str("null");
            }
        }
        if self.answer.return_token_ids {
            let _ = write!(text, ",\"token_ids\":[{token}]}}]");
        } else {
            text.push_str(",\"token_ids\":null}]");
        }
        self.running_usage(choice, index + 1, text);
        if last && !self.answer.include_usage {
            self.answer.write_fingerprint(text);
        }
        text.push_str("}\n\n");
        self.count(text);
    }

    /// Usage, if asked for, and the end.
    fn close(&mut self, progress: &[Progress], text: &mut String) {
        if self.answer.include_usage
            && let Some(counts) = self.answer.usage(progress, self.fault.usage)
        {
            self.head(text);
            text.push_str("[],\"usage\":");
            usage::write_last(&counts, self.answer.dialect, text);
            self.answer.write_fingerprint(text);
            text.push_str("}\n\n");
            self.count(text);
            if self.state != State::Running {
                return;
            }
        }
        text.push_str("data: [DONE]\n\n");
        self.state = State::Done;
    }

    fn head(&self, text: &mut String) {
        text.push_str("data: ");
        text.push_str(&self.answer.head);
        text.push_str("\"choices\":");
    }

    /// Usage in every event, if asked for.
    fn running_usage(&self, choice: usize, generated: u32, text: &mut String) {
        if self.answer.continuous_usage
            && let Some(counts) = self
                .answer
                .running_usage(choice, generated, self.fault.usage)
        {
            text.push_str(",\"usage\":");
            usage::write_running(&counts, text);
        }
    }

    /// One more event is written: time for an injected failure?
    fn count(&mut self, text: &mut String) {
        self.events += 1;
        self.apply_fault(text);
    }

    fn apply_fault(&mut self, text: &mut String) {
        if self.state != State::Running {
            return;
        }
        let due = |after: Option<u32>| after.is_some_and(|after| self.events >= after);
        if due(self.fault.error_after) {
            text.push_str(
                "data: {\"error\": {\"message\": \"EngineCore encountered an issue.\", \"type\": \
                 \"InternalServerError\", \"param\": null, \"code\": 500}}\n\ndata: [DONE]\n\n",
            );
            self.state = State::Done;
        } else if due(self.fault.cut_after) {
            self.state = State::Cut;
        } else if due(self.fault.stall_after) {
            self.state = State::Stalled;
        }
    }
}
