// The checkpoints that a run has on the disk.
import { empty, fill, h, table } from "./dom.js";
import { bytes, count } from "./format.js";

const COLUMNS = [{ title: "Checkpoint" }, { title: "Step", number: true }, { title: "Size", number: true }, { title: "Files" }];

export function checkpointsTab({ run }, panel, signal) {
  update();
  run.addEventListener("info", update, { signal });

  function update() {
    const checkpoints = run.info.checkpoints ?? [];
    if (!checkpoints.length) {
      fill(panel, empty("No checkpoint is there.", "A run saves one at its end, when it is interrupted, and every so many steps; add to the configuration:", "[train]\ncheckpoint_every = 100"));
      return;
    }
    fill(panel, h("p", { class: "muted" }, "Each is a directory that ", h("code", {}, "AutoModelForCausalLM.from_pretrained"), " opens, and that a run goes on from: ", h("code", {}, `tenterhook train CONFIG.toml --resume ${run.id}`)),
      table("Checkpoints", COLUMNS, checkpoints.map((checkpoint) => [
        [h("span", { class: "mono" }, checkpoint.name), checkpoint.problem && h("div", { class: "bad small" }, checkpoint.problem)],
        count(checkpoint.step), bytes(checkpoint.bytes),
        h("details", {}, h("summary", {}, `${checkpoint.files?.length ?? 0} files`), h("ul", { class: "mono small" }, (checkpoint.files ?? []).map((file) => h("li", {}, `${file.name}, ${bytes(file.bytes)}`))))]),
        { class: "cards" }));
  }
}
