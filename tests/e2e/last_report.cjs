// Calls a method with an empty message and prints the load report of the trailers in hex: last_report.cjs TARGET PATH
// (gRPC's C core, which Python uses, hides these trailers from applications.)
const grpc = require("@grpc/grpc-js");

const [target, path] = process.argv.slice(2);
const client = new grpc.Client(target, grpc.credentials.createInsecure());
const same = (bytes) => bytes;
const call = client.makeServerStreamRequest(path, same, same, Buffer.alloc(0));
call.on("data", () => {});
call.on("error", () => {});
call.on("status", (status) => {
  const reports = status.metadata.get("endpoint-load-metrics-bin");
  process.stdout.write(JSON.stringify({ code: status.code, reports: reports.map((report) => report.toString("hex")) }));
  client.close();
});
