// The search of the documentation site runs in a worker, and Chromium starts no worker for a page on the disk. There the
// script runs in a hidden frame instead, with the messages of a worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      const inside = frame.contentWindow;
      this.deliver = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      this.waiting = [];
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      script.onload = () => {
        this.waiting.forEach(this.deliver);
        this.waiting = null;
      };
      frame.contentDocument.documentElement.appendChild(script);
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.deliver(data);
    }
    terminate() {}
  };
}
