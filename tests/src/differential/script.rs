//! A script: how the images are made, and what is done with them.

use std::fmt;

/// How much is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everything, and where clusters lie.
    Exact,
    /// What does not depend on where clusters lie.
    Loose,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// qemu-io with these options, then these commands, on a file.
    Io {
        /// Words before the commands.
        options: Vec<String>,
        /// Each for a `-c`.
        commands: Vec<String>,
        /// The file.
        file: String,
    },
    /// qemu-img with these words.
    Img(Vec<String>),
    /// The images of the two sides change places.
    Swap,
}

/// What both sides do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// How much is compared.
    pub mode: Mode,
    /// The policy that the program is told; QEMU has one only.
    pub policy: &'static str,
    /// What is done before by the installed programs on both sides.
    pub before: Vec<Step>,
    /// What each side does.
    pub steps: Vec<Step>,
}

/// The name of the image.
pub const IMAGE: &str = "image";

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=,./+:".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") }
}

impl Step {
    /// The program of the step, and its words. `None` for a swap.
    pub fn words(&self) -> Option<(&'static str, Vec<String>)> {
        match self {
            Step::Io { options, commands, file } => {
                let mut words = options.clone();
                for command in commands {
                    words.extend(["-c".to_owned(), command.clone()]);
                }
                words.push(file.clone());
                Some(("qemu-io", words))
            }
            Step::Img(words) => Some(("qemu-img", words.clone())),
            Step::Swap => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            None => write!(f, "# the images of the two sides change places"),
            Some((program, words)) => {
                write!(f, "{program}")?;
                words.iter().try_for_each(|word| write!(f, " {}", quoted(word)))
            }
        }
    }
}

/// Lines for a shell: with the installed programs in `PATH` they are one side, with links to the program the other.
impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {:?}; qemu-io of the program: --alloc-policy={}", self.mode, self.policy)?;
        self.before.iter().try_for_each(|step| writeln!(f, "/usr/bin/{step}"))?;
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

/// The words of a line for a shell, of those that are shown: quotes are around whole words.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, part) in line.split('\'').enumerate() {
        match number % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

impl Step {
    fn read(line: &str) -> Option<Self> {
        if line.starts_with('#') {
            return Some(Step::Swap);
        }
        let mut words = words(line).into_iter();
        if words.next()? == "qemu-img" {
            return Some(Step::Img(words.collect()));
        }
        let (mut options, mut commands) = (Vec::new(), Vec::new());
        while let Some(word) = words.next() {
            if word == "-c" { commands.push(words.next()?) } else { options.push(word) }
        }
        let file = options.pop()?;
        Some(Step::Io { options, commands, file })
    }
}

impl Script {
    /// The script of lines as they are shown.
    pub fn read(text: &str) -> Option<Self> {
        let (first, rest) = text.split_once('\n')?;
        let (mode, policy) = first.strip_prefix("# ")?.split_once("; ")?;
        let mode = if mode == "Exact" { Mode::Exact } else { Mode::Loose };
        let policy = ["ahead", "per-allocation"].into_iter().find(|one| policy.ends_with(one))?;
        let (mut before, mut steps) = (Vec::new(), Vec::new());
        for line in rest.lines() {
            match line.strip_prefix("/usr/bin/") {
                Some(line) => before.push(Step::read(line)?),
                None => steps.push(Step::read(line)?),
            }
        }
        Some(Script { mode, policy, before, steps })
    }
}

/// All scripts that lack one step or one command of this one.
fn smaller(script: &Script) -> Vec<Script> {
    let mut all = Vec::new();
    for (at, step) in script.steps.iter().enumerate().skip(1) {
        let mut without = script.clone();
        without.steps.remove(at);
        all.push(without);
        let Step::Io { commands, .. } = step else { continue };
        for (which, command) in commands.iter().enumerate() {
            // What is on its way together is not to meet what comes after.
            if command == "aio_flush" {
                continue;
            }
            let mut without = script.clone();
            if let Some(Step::Io { commands, .. }) = without.steps.get_mut(at) {
                commands.remove(which);
            }
            all.push(without);
        }
    }
    all
}

/// The script without steps and commands that `fails` does not need.
pub fn shrink(script: Script, fails: impl Fn(&Script) -> bool) -> Script {
    let mut script = script;
    while let Some(less) = smaller(&script).into_iter().find(&fails) {
        script = less;
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Script {
        let io = |commands: &[&str]| Step::Io {
            options: vec!["-n".into()],
            commands: commands.iter().map(|&command| command.to_owned()).collect(),
            file: IMAGE.to_owned(),
        };
        Script {
            mode: Mode::Loose,
            policy: "ahead",
            before: Vec::new(),
            steps: vec![
                Step::Img(vec!["create".into(), IMAGE.into(), "1M".into()]),
                io(&["read 0 1", "write 5 5", "length"]),
                Step::Swap,
            ],
        }
    }

    #[test]
    fn a_script_is_shown_as_shell_lines() {
        assert_eq!(
            example().to_string(),
            "# Loose; qemu-io of the program: --alloc-policy=ahead\nqemu-img create image 1M\n\
             qemu-io -n -c 'read 0 1' -c 'write 5 5' -c length image\n\
             # the images of the two sides change places\n"
        );
    }

    #[test]
    fn what_is_shown_can_be_read() {
        let mut script = example();
        let fill =
            Step::Io { options: Vec::new(), commands: vec!["w 0 1".into()], file: "b".into() };
        script.before = vec![Step::Img(vec!["create".into(), "b".into(), "1M".into()]), fill];
        assert_eq!(Script::read(&script.to_string()), Some(script));
    }

    #[test]
    fn what_is_not_needed_is_left_out() {
        let writes = |script: &Script| script.to_string().contains("write 5 5");
        let small = shrink(example(), writes);
        assert_eq!(small.steps.len(), 2);
        assert_eq!(small.steps[1].to_string(), "qemu-io -n -c 'write 5 5' image");
    }
}
