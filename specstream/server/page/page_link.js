/* How the page reaches its server, and what it keeps when it is loaded again. */
/* A browser doesn't say why a WebSocket wasn't opened; the plain pages do. */
async function whyNot() {
  const answer = async (path) => {
    const url = new URL(path, location.href);
    url.search = location.search;
    return fetch(url, { cache: "no-store" }).then((response) => response.status, () => 0);
  };
  const health = await answer("ready");
  if (health === 0) return "the server doesn't answer; is it still running?";
  if (health === 503) return "the server is stopping";
  if ((await answer("metrics")) !== 401) return "too many clients now; trying again";
  const given = new URLSearchParams(location.search).get("token");
  return given ? "the key in this address is wrong" : "this server wants a key: add ?token=KEY";
}

/* Open a connection to the server that the page came from. */
function openSocket(query = {}) {
  const url = new URL("v1/realtime", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.search = location.search; // ?token=… travels on
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  return new WebSocket(url, ["realtime"]);
}

/* The way back to a session whose connection broke: its token, and which events have come. */
const BACK_MS = 30000;
const ACK_EVERY = 32;
class WayBack {
  token = null;
  seq = -1;
  since = null; // when the connection broke

  query() {
    return this.token ? { resume: this.token, seq: this.seq } : { resumable: 1 };
  }

  /* Note an event; false if it has been seen. `acknowledge` tells the server what has come. */
  saw({ type, specstream, error }, acknowledge) {
    if (error?.code === "resume_expired") this.token = null;
    if (type === "specstream.resumed") this.since = null;
    const seq = specstream?.seq;
    if (error?.code === "resume_expired" || type === "specstream.resumed" || seq === undefined) return true;
    if (type === "session.created") {
      this.token = specstream.resume?.token ?? null;
      this.seq = -1;
      this.since = null;
    }
    if (seq <= this.seq) return false;
    this.seq = seq;
    if (seq % ACK_EVERY === 0) acknowledge(seq);
    return true;
  }

  /* Whether to come back after a close with this code. */
  open(code) {
    this.since ??= performance.now();
    if ([1000, 1005, 1008].includes(code) || performance.now() - this.since > BACK_MS) this.token = null;
    return this.token !== null;
  }
}

/* Whether something was said since the page's last conversation began: a page that is loaded again says so. */
function remember(said) {
  try {
    if (said) sessionStorage.setItem("said", "1");
    else sessionStorage.removeItem("said");
  } catch {
    /* a browser may give no storage */
  }
}
function remembered() {
  try {
    return sessionStorage.getItem("said") !== null;
  } catch {
    return false;
  }
}
