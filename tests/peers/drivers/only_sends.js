// The same with the package ws: the address, and for how many seconds.
const WebSocket = require("ws");
const [url, seconds] = [process.argv[2], Number(process.argv[3])];
const socket = new WebSocket(url);
let sent = 0;
function end() {
  console.log(sent);
  process.exit(0);
}
socket.on("close", end);
socket.on("error", end);
socket.on("open", () => {
  setTimeout(end, seconds * 1000);
  setInterval(() => {
    socket.send(JSON.stringify({ type: "say", text: "One more." }));
    sent += 1;
  }, 1000);
});
