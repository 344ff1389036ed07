//! Envoy as a child process, configured from the files in `manifests/envoy`.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::process::{Child, Command};

/// `manifests/envoy/override-host.yaml`
pub const OVERRIDE_HOST: &str = include_str!("../../manifests/envoy/override-host.yaml");
/// `manifests/envoy/original-dst.yaml`
pub const ORIGINAL_DST: &str = include_str!("../../manifests/envoy/original-dst.yaml");

/// Access log in JSON lines, for the block that a manifest leaves empty.
pub const ACCESS_LOG: &str = r#"
          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: ACCESS_LOG_PATH
              log_format:
                json_format:
                  path: "%REQ(:PATH)%"
                  code: "%RESPONSE_CODE%"
                  details: "%RESPONSE_CODE_DETAILS%"
                  flags: "%RESPONSE_FLAGS%"
                  upstream: "%UPSTREAM_HOST%"
                  attempts: "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"
                  header: "%REQ(X-GATEWAY-DESTINATION-ENDPOINT)%"
                  picked: "%DYNAMIC_METADATA(envoy.lb:x-gateway-destination-endpoint)%"
                  served: "%DYNAMIC_METADATA(envoy.lb:x-gateway-destination-endpoint-served)%"
"#;

/// Replaces the lines between `# NAME: begin` and `# NAME: end`.
pub fn block(manifest: &str, name: &str, lines: &str) -> String {
    let (begin, end) = (format!("# {name}: begin"), format!("# {name}: end"));
    let Some((before, rest)) = manifest.split_once(&begin) else {
        return manifest.to_owned();
    };
    let Some((_, after)) = rest.split_once(&end) else {
        return manifest.to_owned();
    };
    let lines = lines.trim_matches('\n');
    format!("{before}{begin}\n{lines}\n{end}{after}")
}

/// Where Envoy listens and whom it talks to.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Envoy's own listener.
    pub listen: SocketAddr,
    /// Envoy's admin page.
    pub admin: SocketAddr,
    /// The picker.
    pub epp: SocketAddr,
    /// Model servers.
    pub endpoints: Vec<SocketAddr>,
}

/// A manifest with these addresses.
pub fn render(manifest: &str, ports: &Ports) -> String {
    let socket =
        |address: &SocketAddr| format!("address: {}, port_value: {}", address.ip(), address.port());
    let endpoint = |address: &SocketAddr| {
        format!(
            "        - endpoint: {{ address: {{ socket_address: {{ {} }} }} }}\n",
            socket(address)
        )
    };
    let endpoints: String = ports.endpoints.iter().map(endpoint).collect();
    block(manifest, "endpoints", &endpoints)
        .replace(
            "address: 127.0.0.1, port_value: 10000",
            &socket(&ports.listen),
        )
        .replace(
            "address: 127.0.0.1, port_value: 19000",
            &socket(&ports.admin),
        )
        .replace("address: 127.0.0.1, port_value: 9002", &socket(&ports.epp))
}

/// The Envoy binary: `WICKETGATE_ENVOY`, else the one that `scripts/setup-test-env.sh` installs below `root`.
pub fn binary(root: &Path) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("WICKETGATE_ENVOY") {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    let libraries = fs::read_dir(root.join(".venv/lib")).ok()?;
    libraries
        .filter_map(Result::ok)
        .map(|entry| entry.path().join("site-packages/envoy/_bin/envoy"))
        .find(|path| path.is_file())
}

/// A running Envoy; dropping it kills it.
pub struct Envoy {
    child: Child,
    admin: SocketAddr,
    dir: PathBuf,
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.start_kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Envoy {
    /// Starts Envoy with a configuration and waits until it is ready.
    ///
    /// # Errors
    /// When it cannot be started, ends at once (its last words are in the error), or is not ready in 20 s.
    pub async fn start(binary: &Path, config: &str, admin: SocketAddr) -> io::Result<Envoy> {
        let dir = std::env::temp_dir().join(format!("wicketgate-envoy-{:016x}", fastrand::u64(..)));
        fs::create_dir_all(&dir)?;
        let file = dir.join("envoy.yaml");
        let log = dir.join("access.log");
        fs::write(
            &file,
            config.replace("ACCESS_LOG_PATH", &log.display().to_string()),
        )?;
        let child = Command::new(binary)
            .arg("-c")
            .arg(&file)
            .args(["--concurrency", "1", "--disable-hot-restart"])
            .args([
                "--file-flush-interval-msec",
                "20",
                "-l",
                "warning",
                "--log-path",
            ])
            .arg(dir.join("envoy.log"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut envoy = Envoy { child, admin, dir };
        envoy.wait_ready().await?;
        Ok(envoy)
    }

    async fn wait_ready(&mut self) -> io::Result<()> {
        let until = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            if self
                .admin_get("/ready")
                .await
                .is_ok_and(|answer| answer.contains("LIVE"))
            {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!(
                    "Envoy ended, {status}: {}",
                    self.words()
                )));
            }
            if tokio::time::Instant::now() > until {
                return Err(io::Error::other(format!(
                    "Envoy is not ready: {}",
                    self.words()
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Envoy's own log.
    pub fn words(&self) -> String {
        fs::read_to_string(self.dir.join("envoy.log")).unwrap_or_default()
    }

    /// Lines of its access log.
    pub fn access_log(&self) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.dir.join("access.log")).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// A page of its admin port.
    ///
    /// # Errors
    /// When the port does not answer.
    pub async fn admin_get(&self, path: &str) -> io::Result<String> {
        use http_body_util::BodyExt as _;
        let mut connection = crate::client::Connection::open(self.admin).await?;
        let request = http::Request::get(path)
            .header(http::header::HOST, "admin")
            .body(http_body_util::Full::default())
            .map_err(io::Error::other)?;
        let answer = connection
            .try_send(request)
            .await
            .map_err(io::Error::other)?;
        let body = answer
            .into_body()
            .collect()
            .await
            .map_err(io::Error::other)?;
        Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
    }

    /// Waits until Envoy counts the picker as healthy.
    ///
    /// # Errors
    /// When it does not within 15 s.
    pub async fn wait_picker_healthy(&self) -> io::Result<()> {
        let until = tokio::time::Instant::now() + Duration::from_secs(15);
        loop {
            let stats = self
                .admin_get("/stats?filter=cluster.epp.membership_healthy")
                .await?;
            if stats.trim().ends_with(": 1") {
                return Ok(());
            }
            if tokio::time::Instant::now() > until {
                return Err(io::Error::other(format!(
                    "the picker is not healthy for Envoy: {stats}"
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_take_addresses() {
        let at = |text: &str| text.parse().unwrap();
        let ports = Ports {
            listen: at("127.0.0.1:1"),
            admin: at("127.0.0.1:2"),
            epp: at("127.0.0.1:3"),
            endpoints: vec![at("127.0.0.1:4"), at("127.0.0.2:5")],
        };
        for manifest in [OVERRIDE_HOST, ORIGINAL_DST] {
            let text = render(manifest, &ports);
            for port in ["10000", "19000", "9002", "8001", "8002"] {
                assert!(!text.contains(&format!("port_value: {port} ")), "{port}");
            }
            assert!(text.contains("address: 127.0.0.1, port_value: 3 "));
        }
        let text = render(OVERRIDE_HOST, &ports);
        assert!(text.contains("address: 127.0.0.2, port_value: 5 "));
        assert_eq!(
            block("a # x: begin\nold\n# x: end b", "x", "new"),
            "a # x: begin\nnew\n# x: end b"
        );
    }
}
