// Server-sent events, with a word to the reader when they stop coming.
import { connection } from "./notice.js";

/**
 * Follows a stream until `signal` aborts or a handler returns "close". Handlers get the event's parsed data. A hidden page
 * lets go of its stream: browsers allow few connections to one server, and nobody is looking.
 */
export function follow(url, handlers, signal) {
  let source = null;
  let retry = 0;
  let timer = null;

  function open() {
    if (signal.aborted || source || document.hidden) return;
    source = new EventSource(url);
    source.addEventListener("open", () => {
      retry = 0;
      connection("live");
    });
    source.addEventListener("error", lost);
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        if (handler(JSON.parse(event.data)) === "close") stop();
      });
    }
  }

  // Closed here and opened again here: the browser's own way of trying again gives up after an error status.
  function lost() {
    close();
    connection("waiting");
    retry += 1;
    timer = setTimeout(open, Math.min(1000 * 2 ** (retry - 1), 15000));
  }

  function close() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  function stop() {
    close();
    document.removeEventListener("visibilitychange", look);
    connection("idle");
  }

  function look() {
    if (document.hidden) close();
    else open();
  }

  document.addEventListener("visibilitychange", look);
  signal.addEventListener("abort", stop);
  open();
}
