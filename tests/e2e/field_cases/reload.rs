//! Configuration and certificates that change under a running process.

use std::path::Path;

use wicketgate_testkit::{
    TempDir,
    certs::Authority,
    client::call,
    cluster::{Command, Front, addresses, config_text, endpoint_lines, engines},
    eventually, free_address,
    process::Process,
    scripted::Scripted,
};

use crate::wicketgate;

/// Files as a kubelet mounts them: a link to a directory of links, of which one is flipped.
struct Mounted(TempDir);

impl Mounted {
    fn new(files: &[(&str, &str)]) -> Mounted {
        let mounted = Mounted(TempDir::new());
        mounted.flip("one", files);
        for (name, _) in files {
            let target = Path::new("..data").join(name);
            std::os::unix::fs::symlink(target, mounted.0.path().join(name)).unwrap();
        }
        mounted
    }

    /// Writes a new set and makes it the present one at a stroke. Every set has the same modification time.
    fn flip(&self, set: &str, files: &[(&str, &str)]) {
        let directory = self.0.path().join(set);
        std::fs::create_dir(&directory).unwrap();
        let epoch = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        for (name, text) in files {
            std::fs::write(directory.join(name), text).unwrap();
            let file = std::fs::File::options()
                .write(true)
                .open(directory.join(name));
            file.unwrap().set_modified(epoch).unwrap();
        }
        let link = self.0.path().join("..new");
        std::os::unix::fs::symlink(set, &link).unwrap();
        std::fs::rename(link, self.0.path().join("..data")).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

/// C39: good, broken, good: a configuration that cannot be read changes nothing, is counted, and its correction is
/// taken over; written in place, or by a flip to a file of the same time and length.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_configuration_changes_nothing() {
    for command in [Command::Serve, Command::Epp] {
        let engines = engines(1).await;
        let pool = endpoint_lines(&addresses(&engines));
        let ports = [free_address(), free_address(), free_address()];
        let text = |limit: &str| {
            let server = format!("  maxBodyBytes: {limit}\n");
            config_text(command, ports, &pool, &server, "")
        };
        let broken = text("2Ki").replace("pools:", "pools [");
        assert_eq!(broken.len(), text("2Ki").len() + 1);
        let broken = broken.trim_end().to_owned();
        assert_eq!(broken.len(), text("2Ki").len());
        let mounted = Mounted::new(&[("config.yaml", &text("1Ki"))]);
        let name = match command {
            Command::Serve => "serve",
            Command::Epp => "epp",
        };
        let process = Process::start(
            wicketgate(),
            &[name, "--config", &mounted.path("config.yaml")],
        );
        let admin = ports[2];
        eventually("a listener", || async {
            tokio::net::TcpStream::connect(admin).await.ok()
        })
        .await;
        let page = async |path: &str| {
            let page = call(admin, "GET", path, &[], "").await;
            String::from_utf8(page.body.to_vec()).unwrap()
        };
        let state = async |limit: &str, failed: u8| {
            eventually(limit, || async {
                let failed = format!("wicketgate_config_reload_failed {failed}\n");
                let limit = format!("maxBodyBytes: {limit}\n");
                let holds = page("/metrics").await.contains(&failed)
                    && page("/debug/config").await.contains(&limit);
                holds.then_some(())
            })
            .await;
        };
        let said = async |word: &str| {
            eventually(word, || async {
                let words = process.words();
                words.iter().any(|line| line.contains(word)).then_some(())
            })
            .await;
        };
        state("1Ki", 0).await;
        mounted.flip("two", &[("config.yaml", &broken)]);
        state("1Ki", 1).await;
        said("configuration refused, the last one stays").await;
        // Corrected, with a change that only a restart brings: that is said.
        let corrected = text("2Ki").replace("drainTimeout: 10s", "drainTimeout: 11s");
        mounted.flip("three", &[("config.yaml", &corrected)]);
        state("2Ki", 0).await;
        said("server.drainTimeout has changed: restart to take it over").await;
        // In place, and in two steps as an editor may do it.
        let file = mounted.path("three/config.yaml");
        std::fs::write(&file, "pools: [").unwrap();
        state("2Ki", 1).await;
        std::fs::write(&file, text("3Ki")).unwrap();
        state("3Ki", 0).await;
        if command == Command::Serve {
            let body = "x".repeat(3000);
            let echo = [("x-emulator-echo", "1")];
            let status = call(ports[0], "POST", "/v1/x", &echo, body).await.status;
            assert_eq!(status, 200);
        }
    }
}

/// C39: what is wrong with a file is said before it runs, and what a good one comes to.
#[test]
fn a_check_says_everything_at_once() {
    let files = TempDir::new();
    let check = |text: &str| {
        let file = files.write("c.yaml", text).display().to_string();
        let output = std::process::Command::new(wicketgate())
            .args(["config", "check", &file])
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let wrong = "flowControl: {defaultRequestTTl: 5s}
plugins: [{type: queue-scorer}, {type: max-score-picker}, {type: random-picker}]
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: -1}
  - {pluginRef: max-score-picker}
  - {pluginRef: random-picker}
";
    let (code, out, error) = check(wrong);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{error}");
    for said in [
        ":1: flowControl.defaultRequestTTl: unknown key `defaultRequestTTl`; did you mean `defaultRequestTTL`?",
        ":6: schedulingProfiles[0].plugins[0].weight: `-1` is not valid",
        ":8: schedulingProfiles[0].plugins[2]: `random-picker` is a second picker besides `max-score-picker`",
    ] {
        assert!(error.contains(said), "no {said:?} in {error}");
    }
    let (code, _, error) = check(&wrong.replace("-1", "NaN"));
    assert_eq!(code, Some(2));
    assert!(error.contains("weight: `NaN` is not valid"), "{error}");
    let (code, out, error) = check("pools: [{endpoints: [{address: \"10.0.0.1:8000\"}]}]\n");
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(
        out.contains("maxBodyBytes: 16Mi") && out.contains("10.0.0.1:8000"),
        "{out}"
    );
    assert_eq!(check(&out).0, Some(0), "what it prints is a file again");
}

/// A certificate, its key, and the authority that callers' certificates must be of.
struct Set {
    authority: Authority,
    certificate: String,
    key: String,
    /// The authority as a file.
    root: String,
    /// A caller's files.
    caller: (String, String),
}

impl Set {
    fn new(name: &str, files: &TempDir) -> Set {
        let authority = Authority::new(name);
        let pair = authority.issue(&["localhost"]);
        let caller = authority.issue(&["caller"]);
        let write = |what: &str, text: &str| {
            let path = files.write(&format!("{name}-{what}"), text);
            path.display().to_string()
        };
        Set {
            root: write("root.crt", &authority.certificate),
            caller: (
                write("caller.crt", &caller.certificate),
                write("caller.key", &caller.key),
            ),
            certificate: pair.certificate,
            key: pair.key,
            authority,
        }
    }

    fn files(&self) -> [(&str, &str); 3] {
        [
            ("tls.crt", &self.certificate),
            ("tls.key", &self.key),
            ("ca.crt", &self.authority.certificate),
        ]
    }
}

/// Whether a handshake works: the server's certificate is of `root`, and it takes the caller's.
async fn works(address: std::net::SocketAddr, root: &str, caller: &Set) -> bool {
    let url = format!("https://localhost:{}/v1/models", address.port());
    let mut curl = tokio::process::Command::new("curl");
    curl.args(["-s", "-o", "/dev/null", "--http2", "--cacert", root]);
    curl.args(["--cert", &caller.caller.0, "--key", &caller.caller.1, &url]);
    curl.status().await.unwrap().success()
}

/// C39: keys, certificates and client authorities are read again, whether they are swapped one after the other or all
/// at a stroke; a pair that does not fit is never in use, and there is no gap.
#[tokio::test(flavor = "multi_thread")]
async fn keys_and_authorities_are_read_again() {
    let files = TempDir::new();
    let [one, two, three] = ["one", "two", "three"].map(|name| Set::new(name, &files));
    let sets = [&one, &two, &three];
    let all: String = sets
        .iter()
        .map(|set| set.authority.certificate.as_str())
        .collect();
    let any = files.write("any.pem", &all).display().to_string();
    let mut fronts = Vec::new();
    for (command, key) in [(Command::Serve, "tls"), (Command::Epp, "extProcTls")] {
        let mounted = Mounted::new(&one.files());
        let [cert, secret, ca] = one.files().map(|(name, _)| mounted.path(name));
        let section =
            format!("  {key}: {{certFile: {cert}, keyFile: {secret}, clientCaFile: {ca}}}\n");
        let pool = endpoint_lines(&[free_address()]);
        let front = Front::start_with(wicketgate(), command, &pool, &section, "", &[]).await;
        assert!(works(front.data, &one.root, &one).await);
        assert!(!works(front.data, &two.root, &one).await);
        assert!(!works(front.data, &one.root, &two).await);
        fronts.push((front, mounted));
    }
    let only = async |front: &Front, index: usize| {
        eventually("the new certificate", || async {
            // Old or new, but one of them, at every moment.
            let (mut held, mut any_works) = (false, false);
            for set in sets {
                any_works |= works(front.data, &any, set).await;
                held |= works(front.data, &sets[index].root, set).await;
            }
            assert!(any_works, "{:?}", front.process.words());
            held.then_some(())
        })
        .await;
        for (other, set) in sets.iter().enumerate() {
            let expected = other == index;
            assert_eq!(works(front.data, &sets[index].root, set).await, expected);
            assert_eq!(works(front.data, &set.root, sets[index]).await, expected);
        }
    };
    // One after the other, the key first: until its certificate is there, the old pair stays.
    for (front, mounted) in &fronts {
        std::fs::write(mounted.path("one/tls.key"), &two.key).unwrap();
        eventually("a word about the pair", || async {
            let words = front.process.words().join("\n");
            words
                .contains("certificates on disk cannot be used; the old ones stay")
                .then_some(())
        })
        .await;
        assert!(works(front.data, &one.root, &one).await);
    }
    for (_, mounted) in &fronts {
        std::fs::write(mounted.path("one/ca.crt"), &two.authority.certificate).unwrap();
        std::fs::write(mounted.path("one/tls.crt"), &two.certificate).unwrap();
    }
    for (front, _) in &fronts {
        only(front, 1).await;
    }
    for (_, mounted) in &fronts {
        mounted.flip("three", &three.files());
    }
    for (front, _) in &fronts {
        only(front, 2).await;
    }
}

/// C39: engines behind TLS are scraped through it, and the authority of their certificates is read again.
#[tokio::test(flavor = "multi_thread")]
async fn scrapes_outlive_a_rotation() {
    let files = TempDir::new();
    let write = |name: &str, text: &str| files.write(name, text).display().to_string();
    let [old, new] = ["old", "new"].map(Authority::new);
    let [before, after] = [&old, &new].map(|authority| authority.issue(&["localhost"]));
    let (cert, key, ca) = (
        write("tls.crt", &before.certificate),
        write("tls.key", &before.key),
        write("ca.crt", &old.certificate),
    );
    // A gateway that speaks TLS stands for an engine: it passes everything on, the metrics page as well.
    let page =
        "vllm:num_requests_running 3\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n";
    let inner = Scripted::with_page(page).await;
    let tls = format!("  tls: {{certFile: {cert}, keyFile: {key}}}\n");
    let pool = endpoint_lines(&[inner.address]);
    let engine = Front::start_with(wicketgate(), Command::Serve, &pool, &tls, "", &[]).await;
    let pool = format!(
        "  endpoints: [{{address: \"https://localhost:{}\"}}]\n",
        engine.data.port()
    );
    let upstream = format!("upstream: {{tls: {{caFile: {ca}}}}}\n");
    let front = Front::start_with(wicketgate(), Command::Serve, &pool, "", &upstream, &[]).await;
    front.wait_scraped(1).await;
    let view = front.view("/debug/endpoints").await;
    assert_eq!(view["main"][0]["kv_usage"]["value"], 0.5, "{view}");
    let ok = async || call(front.data, "GET", "/v1/models", &[], "").await.status == 200;
    assert!(ok().await);

    write("tls.crt", &after.certificate);
    write("tls.key", &after.key);
    let kept = format!("https://localhost:{}/health", engine.data.port());
    let root = write("new.crt", &new.certificate);
    eventually("the engine's new certificate", || async {
        let mut curl = tokio::process::Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "--cacert", &root, &kept]);
        curl.status().await.unwrap().success().then_some(())
    })
    .await;
    write("ca.crt", &new.certificate);
    // Kept connections are closed with the engine; the next ones must be new handshakes.
    engine.process.signal("STOP").await;
    eventually("failed scrapes", || async {
        let failed = front.metric(&["scrapes_total", "result=\"timeout\""]).await;
        (failed > 0.0).then_some(())
    })
    .await;
    engine.process.signal("CONT").await;
    eventually("scrapes by the new authority", || async {
        let view = front.view("/debug/endpoints").await;
        let well = view["main"][0]["scrape_failures"] == 0;
        (well && ok().await).then_some(())
    })
    .await;
    front.assert_guards_at_zero().await;
}
