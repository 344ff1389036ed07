//! What a running process does not take over from a changed file.

use crate::Config;

impl Config {
    /// Keys that differ from the configuration a process was started with and are read at the start only, as the
    /// file names them. Everything else is taken over while it runs.
    pub fn needs_restart(&self, started: &Config) -> Vec<String> {
        let (new, old) = (self, started);
        let server = [
            ("bind", new.bind != old.bind),
            ("httpPort", new.http_port != old.http_port),
            ("extProcPort", new.ext_proc_port != old.ext_proc_port),
            ("healthPort", new.health_port != old.health_port),
            ("metricsPort", new.metrics_port != old.metrics_port),
            ("tls", new.tls.http != old.tls.http),
            ("extProcTls", new.tls.ext_proc != old.tls.ext_proc),
            ("maxHeaderBytes", new.max_header != old.max_header),
            ("maxConnections", new.max_connections != old.max_connections),
            ("maxStreams", new.max_streams != old.max_streams),
            ("headerTimeout", new.header_timeout != old.header_timeout),
            ("drainTimeout", new.drain_timeout != old.drain_timeout),
            ("workers", new.workers != old.workers),
            ("managementPort", new.management.port != old.management.port),
            ("managementBind", new.management.bind != old.management.bind),
            (
                "managementToken",
                new.management.token != old.management.token,
            ),
            ("managementTls", new.management.tls != old.management.tls),
            (
                "exposeServedBy",
                new.expose_served_by != old.expose_served_by,
            ),
        ];
        let upstream = [
            ("connectTimeout", new.connect_timeout != old.connect_timeout),
            (
                "firstByteTimeout",
                new.first_byte_timeout != old.first_byte_timeout,
            ),
            ("totalTimeout", new.total_timeout != old.total_timeout),
            ("retryBackoff", new.retry_backoff != old.retry_backoff),
            ("tls", new.upstream_ca != old.upstream_ca),
            ("bearerToken", new.bearer_token() != old.bearer_token()),
        ];
        let telemetry = [
            ("interval", new.scrape_interval != old.scrape_interval),
            ("timeout", new.scrape_timeout != old.scrape_timeout),
            (
                "jitter",
                new.scrape_jitter.to_bits() != old.scrape_jitter.to_bits(),
            ),
            ("maxPageBytes", new.scrape_max_page != old.scrape_max_page),
            ("path", new.scrape_path != old.scrape_path),
            ("engine", new.engine != old.engine),
        ];
        let scheduler = [
            ("seed", new.seed != old.seed),
            (
                "recordDecisions",
                new.record_decisions != old.record_decisions,
            ),
        ];
        let fleet = (new.fleet != old.fleet).then(|| "fleet".to_owned());
        let observability = [("logLevel", new.log_level != old.log_level)];
        let sections: [(&str, &[(&str, bool)]); 5] = [
            ("server", &server),
            ("upstream", &upstream),
            ("telemetry", &telemetry),
            ("scheduler", &scheduler),
            ("observability", &observability),
        ];
        let changed = sections.iter().flat_map(|(section, keys)| {
            let keys = keys.iter().filter(|(_, differs)| *differs);
            keys.map(move |(key, _)| format!("{section}.{key}"))
        });
        let kv_index = (new.kv_index != old.kv_index).then(|| "kvIndex".to_owned());
        let changed = changed.chain(fleet).chain(kv_index);
        changed.chain(self.pools_at_start(started)).collect()
    }

    /// The same of pools that go on: a watched file, and the endpoints beside it, which are read together with it.
    fn pools_at_start(&self, started: &Config) -> impl Iterator<Item = String> {
        self.pools.iter().enumerate().filter_map(|(index, new)| {
            let old = started.pools.iter().find(|old| old.name == new.name)?;
            if new.endpoints_file != old.endpoints_file {
                return Some(format!("pools[{index}].endpointsFile"));
            }
            let beside = new.endpoints_file.is_some() && new.endpoints != old.endpoints;
            beside.then(|| format!("pools[{index}].endpoints"))
        })
    }
}
