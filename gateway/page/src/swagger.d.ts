declare module "swagger-ui-dist/swagger-ui-es-bundle" {
  export default function SwaggerUI(options: object): void;
}
