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
function openSocket() {
  const url = new URL("v1/realtime", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.search = location.search; // ?token=… travels on
  return new WebSocket(url, ["realtime"]);
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
