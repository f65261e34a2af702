//! A ZeroMQ broker of one test's own: libzmq's own proxy between an XSUB and an XPUB socket.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::{Process, free_port};
use crate::release::Release;

const START_LIMIT: Duration = Duration::from_secs(20);
const ATTEMPTS: u32 = 3;

/// What runs in the Python of a Dynamo release, which has pyzmq.
const PROXY: &str = "import sys, zmq
context = zmq.Context()
xsub, xpub = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
for socket, port in ((xsub, sys.argv[1]), (xpub, sys.argv[2])):
    socket.set_hwm(100000)
    socket.bind('tcp://127.0.0.1:' + port)
zmq.proxy(xsub, xpub)
";

/// A running broker on loopback.
pub(crate) struct Broker {
    process: Process,
    scratch: PathBuf,
    ports: [u16; 2],
}

impl Broker {
    /// Starts one; its log goes to `scratch`.
    pub(crate) fn start(scratch: &Path) -> Self {
        for attempt in 1..=ATTEMPTS {
            let ports = [free_port(), free_port()];
            match spawn(scratch, ports) {
                Ok(process) => {
                    return Self {
                        process,
                        scratch: scratch.to_owned(),
                        ports,
                    };
                }
                Err(process) if attempt == ATTEMPTS => process.show_log(),
                Err(_) => {}
            }
        }
        panic!("the broker did not start in {ATTEMPTS} attempts; its log is above");
    }

    /// As in `DYN_ZMQ_BROKER_URL`.
    pub(crate) fn url(&self) -> String {
        let [publishers, routers] = self.endpoints();
        format!("xsub={publishers} , xpub={routers}")
    }

    /// `tcp://host:port` of the XSUB and of the XPUB side.
    pub(crate) fn endpoints(&self) -> [String; 2] {
        self.ports.map(|port| format!("tcp://127.0.0.1:{port}"))
    }

    /// Kills it as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same addresses.
    pub(crate) fn restart(&mut self) {
        match spawn(&self.scratch, self.ports) {
            Ok(process) => self.process = process,
            Err(process) => {
                process.show_log();
                panic!("the broker did not come back; its log is above");
            }
        }
    }
}

/// Starts it and waits until both sides take connections; `Err` when it ended instead.
fn spawn(scratch: &Path, ports: [u16; 2]) -> Result<Process, Process> {
    let mut process = Process::start("broker", &Release::V1_6_1.python(), scratch, |command| {
        command.args(["-c", PROXY]).args(ports.map(|port| port.to_string()));
    });
    let open = || {
        ports
            .iter()
            .all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok())
    };
    match process.wait_ready(START_LIMIT, open) {
        Ok(()) => Ok(process),
        Err(_status) => Err(process),
    }
}
