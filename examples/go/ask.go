// Asks about an image over gRPC, and prints the answer as it is generated: ask [flags] QUESTION IMAGE
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	glimpsev1 "glimpse/v1"
)

func main() {
	target := flag.String("target", "127.0.0.1:50051", "HOST:PORT of the server or of its gateway")
	deadline := flag.Duration("deadline", time.Minute, "time for the whole answer")
	cancelAfter := flag.Int("cancel-after", 0, "cancel after so many pieces of text; 0: never")
	maxTokens := flag.Uint("max-tokens", 64, "largest number of tokens in the answer")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: ask [flags] QUESTION IMAGE")
		os.Exit(2)
	}
	image, err := os.ReadFile(flag.Arg(1))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	request := chatRequest(flag.Arg(0), image, uint32(*maxTokens))
	if err := ask(*target, *deadline, *cancelAfter, request); err != nil {
		explain(*target, err)
		os.Exit(1)
	}
	fmt.Println()
}

func chatRequest(question string, image []byte, maxTokens uint32) *glimpsev1.CreateChatCompletionRequest {
	temperature := float32(0)
	source := &glimpsev1.MediaSource{Source: &glimpsev1.MediaSource_Data{Data: image}}
	content := []*glimpsev1.ContentPart{
		{Part: &glimpsev1.ContentPart_Image{Image: &glimpsev1.ImagePart{Source: source}}},
		{Part: &glimpsev1.ContentPart_Text{Text: question}},
	}
	return &glimpsev1.CreateChatCompletionRequest{
		Messages:   []*glimpsev1.Message{{Role: glimpsev1.Role_ROLE_USER, Content: content}},
		Generation: &glimpsev1.GenerationOptions{Temperature: &temperature, MaxCompletionTokens: &maxTokens},
	}
}

func ask(target string, deadline time.Duration, cancelAfter int, request *glimpsev1.CreateChatCompletionRequest) error {
	// Pings keep the connection open through proxies that close silent ones.
	pings := keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 20 * time.Second, PermitWithoutStream: true}
	connection, err := grpc.Dial(target, grpc.WithInsecure(), grpc.WithKeepaliveParams(pings))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	stream, err := glimpsev1.NewChatServiceClient(connection).StreamChatCompletion(ctx, request)
	if err != nil {
		return err
	}
	for pieces := 0; ; {
		chunk, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for _, choice := range chunk.Choices {
			if text := choice.GetDelta().GetContent(); text != "" {
				fmt.Print(text)
				if pieces++; pieces == cancelAfter {
					cancel()
				}
			}
		}
	}
}

// Prints the status, and the reason and the field that the server attaches to it.
func explain(target string, err error) {
	failure := status.Convert(err)
	if failure.Code() == codes.Unavailable {
		fmt.Fprintf(os.Stderr, "no answer from %s: %s\nIs the server running? `make up` starts one.\n", target, failure.Message())
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", failure.Code(), failure.Message())
	for _, detail := range failure.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			fmt.Fprintf(os.Stderr, "reason: %s\n", detail.Reason)
		case *errdetails.BadRequest:
			for _, violation := range detail.FieldViolations {
				fmt.Fprintf(os.Stderr, "field: %s\n", violation.Field)
			}
		}
	}
}
